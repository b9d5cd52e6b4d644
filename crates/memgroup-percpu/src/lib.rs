//! Which CPU slot am I on, and per-slot storage, for memgroup
