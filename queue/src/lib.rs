//! The task queue: everything that touches the tasks table, one file per transition.
