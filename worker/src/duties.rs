//! Duties: background services that each worker performs for the whole fleet, besides running
//! tasks. There is no leader: any number of workers do each duty concurrently, coordinated by locks
//! in the database.

pub(crate) mod duty;
pub(crate) mod heartbeat;
pub(crate) mod listener;
pub(crate) mod maintenance;
pub(crate) mod notifier;
pub(crate) mod permit_granter;
pub(crate) mod poll;
pub(crate) mod promoter;
pub(crate) mod reclaimer;
pub(crate) mod run_advancer;
pub(crate) mod schedule_sync;
pub(crate) mod scheduler;
pub(crate) mod trigger_evaluator;
