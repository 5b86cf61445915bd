"""Media clustering over Redis Streams: a producer that is rolled out, workers, and the old HTTP way."""
