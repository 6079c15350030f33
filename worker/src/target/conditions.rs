//! Checks the conditions of targets, for the whole fleet: a target is held back while a standby of it
//! lags, a snapshot in it is old, or many of its sessions are active.

use std::collections::HashSet;
use std::sync::Arc;

use queue::QueueError;
use queue::target_conditions::{begin_check, check_conditions, end_check};
use tokio::sync::watch;

use crate::context::Context;
use crate::control::answered;
use crate::duties::duty::{Duty, StopAt};
use crate::target::Target;

/// The checks of the targets that this worker reaches.
pub(crate) struct TargetConditions {
    context: Arc<Context>,
    targets: Vec<Target>,
    /// Set by the poller: targets that have conditions.
    to_check: watch::Receiver<Vec<String>>,
    /// Targets whose last check failed.
    failing: HashSet<String>,
}

impl TargetConditions {
    pub(crate) fn new(
        context: Arc<Context>,
        targets: Vec<Target>,
        to_check: watch::Receiver<Vec<String>>,
    ) -> Self {
        Self { context, targets, to_check, failing: HashSet::new() }
    }

    /// Checks a target, unless another worker has just begun to. Returns whether it did. The result
    /// of the last check stays in force if the target does not answer: its tasks wait for it anyway.
    async fn check(&self, target: &Target) -> Result<bool, QueueError> {
        let control = &self.context.control;
        let begun = answered(async { begin_check(&*control.get().await?, &target.name).await });
        let Some(conditions) = begun.await? else { return Ok(false) };
        let reason =
            answered(async { check_conditions(&*target.host.get().await?, conditions).await })
                .await?;
        answered(async {
            end_check(&*control.get().await?, &target.name, reason.as_deref()).await
        })
        .await?;
        Ok(true)
    }

    /// Reports an error in the worker's status until a check succeeds or there is nothing to check.
    fn report(&mut self, name: &str, error: Option<&QueueError>) {
        let operation = format!("conditions of target {name}");
        let errors = self.context.control.errors();
        match error {
            Some(error) => {
                if self.failing.insert(name.to_owned()) {
                    tracing::warn!(target = name, %error, "could not check the conditions of a target");
                }
                errors.set(&operation, error);
            }
            None if self.failing.remove(name) => errors.clear(&operation),
            None => {}
        }
    }
}

impl Duty for TargetConditions {
    const NAME: &'static str = "target_conditions";
    const STOPS: StopAt = StopAt::Drain;
    type Cause = ();

    async fn next(&mut self) -> Option<()> {
        if self.targets.is_empty() {
            return None;
        }
        loop {
            self.to_check.changed().await.ok()?;
            if !self.to_check.borrow_and_update().is_empty() || !self.failing.is_empty() {
                return Some(());
            }
        }
    }

    /// Returns the number of targets checked. A target that fails does not delay the others.
    async fn run_once(&mut self, (): ()) -> Result<u64, QueueError> {
        let to_check = self.to_check.borrow().clone();
        let mut checked = 0;
        for target in self.targets.clone() {
            if !to_check.iter().any(|name| **name == *target.name) {
                self.report(&target.name, None);
                continue;
            }
            match self.check(&target).await {
                Ok(false) => {}
                Ok(true) => {
                    checked += 1;
                    self.report(&target.name, None);
                }
                Err(error) => self.report(&target.name, Some(&error)),
            }
        }
        Ok(checked)
    }
}
