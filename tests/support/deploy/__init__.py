"""What tests of the chart, the rules and the dashboards read them with."""
