//! Models of the statistics.
