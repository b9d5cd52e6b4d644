//! Models of shrinkers: every interleaving of a few calls, with up to three preemptions. Each
//! fault of `mutation` must make its model fail.

mod credit;
mod marks;
mod slots;
