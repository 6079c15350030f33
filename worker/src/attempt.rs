//! Attempts: the run of a claimed task in a session, from the check of its statement to the record
//! of its result.
//!
//! | step | file |
//! |---|---|
//! | a reader: waits for a claim, runs its tasks, has their results recorded | `reader` |
//! | the session of a reader: opened, begun for each task, reset between tasks | `session` |
//! | one task in its own transaction or in autocommit mode; result of the attempt | `execute` |
//! | short tasks one after another: which of them may wait, and for how long | `chain` |
//! | several short tasks in one transaction, each with a savepoint | `shared_commit` |
//! | what a claim has left out: long statements and parameters | `load` |
//! | refusal, preparation and sending of a statement; its results as a stream | `statement` |
//! | JSON values as parameters, in text format | `params` |
//! | handlers in Rust, which run a call instead of the server | `call` |
//! | rows, notices and progress of a statement | `output` |
//! | deadline, stop signals, cancel requests; who has ended a session | `supervise` |
//! | errors of a statement, classified by the required reaction | `error` |
//! | completion and COMMIT in one message, which may also begin the next task | `commit` |
//! | ends of attempts that have committed in another database | `in_target` |
//! | record of every other result on a control session; releases | `finish` |

pub(crate) mod call;
pub(crate) mod chain;
pub(crate) mod commit;
pub(crate) mod error;
pub(crate) mod execute;
pub(crate) mod finish;
pub(crate) mod in_target;
pub(crate) mod load;
pub mod output;
pub mod params;
pub(crate) mod reader;
pub(crate) mod session;
pub(crate) mod shared_commit;
pub(crate) mod statement;
pub(crate) mod supervise;
