"""What tests share: each package is named by what it supports."""
