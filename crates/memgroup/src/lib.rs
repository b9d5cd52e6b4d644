//! Memory control groups inside one process: hierarchical limits with per-CPU batched charging
