//! Fair shares of a parent's room: the rule, the child that gives, and the work that is stopped.

mod beside;
mod giving;
mod nested;
mod own;
mod rule;
mod victims;
use super::protect::cache;
