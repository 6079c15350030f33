//! Decides which tasks are traced, as the samplers of OpenTelemetry do.

use clap::ValueEnum;
use queue::Traceparent;

use crate::telemetry::traces::ids::TraceId;

/// A sampler, by its name in `OTEL_TRACES_SAMPLER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Sampler {
    /// Every task.
    AlwaysOn,
    /// No task.
    AlwaysOff,
    /// A ratio of all traces.
    #[value(name = "traceidratio")]
    TraceIdRatio,
    /// As the caller decided; every task whose caller has no trace.
    #[value(name = "parentbased_always_on")]
    ParentBasedAlwaysOn,
    /// As the caller decided; no task whose caller has no trace.
    #[value(name = "parentbased_always_off")]
    ParentBasedAlwaysOff,
    /// As the caller decided; a ratio of the tasks whose caller has no trace.
    #[value(name = "parentbased_traceidratio")]
    ParentBasedTraceIdRatio,
}

impl Sampler {
    /// Returns whether to trace a task. The decision is the same on every worker with these
    /// settings.
    pub(crate) fn samples(self, ratio: f64, trace: TraceId, caller: Option<&Traceparent>) -> bool {
        match (self, caller) {
            (
                Self::ParentBasedAlwaysOn
                | Self::ParentBasedAlwaysOff
                | Self::ParentBasedTraceIdRatio,
                Some(caller),
            ) => caller.sampled(),
            (Self::AlwaysOn | Self::ParentBasedAlwaysOn, _) => true,
            (Self::AlwaysOff | Self::ParentBasedAlwaysOff, _) => false,
            (Self::TraceIdRatio | Self::ParentBasedTraceIdRatio, _) => in_ratio(ratio, trace),
        }
    }
}

/// Compares the last 8 bytes of the trace id, as the SDKs do, so that all of them sample the same
/// traces.
fn in_ratio(ratio: f64, trace: TraceId) -> bool {
    let [.., a, b, c, d, e, f, g, h] = trace.0;
    let random = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
    #[expect(clippy::cast_precision_loss, reason = "the ratio is approximate")]
    let place = random as f64 / (1_u64 << 63) as f64;
    place < ratio
}

#[cfg(test)]
mod tests {
    use queue::TaskId;

    use super::*;

    #[test]
    fn a_ratio_takes_its_part_of_the_traces() {
        let traces = (0..10_000).map(|id| TraceId::of_task([0; 12], TaskId(id)));
        let sampled = traces.clone().filter(|it| Sampler::TraceIdRatio.samples(0.1, *it, None));
        assert!((900..1100).contains(&sampled.count()));
        assert!(traces.clone().all(|it| Sampler::TraceIdRatio.samples(1.0, it, None)));
        assert!(!traces.clone().any(|it| Sampler::TraceIdRatio.samples(0.0, it, None)));
    }

    #[test]
    fn the_caller_decides_for_a_parent_based_sampler() {
        let caller = |flags: &str| -> Traceparent {
            format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}").parse().unwrap()
        };
        let (yes, no) = (caller("01"), caller("00"));
        let trace = TraceId::of_caller(&yes);
        let samples = |sampler: Sampler, caller| sampler.samples(0.0, trace, caller);
        for sampler in [
            Sampler::ParentBasedAlwaysOn,
            Sampler::ParentBasedAlwaysOff,
            Sampler::ParentBasedTraceIdRatio,
        ] {
            assert!(samples(sampler, Some(&yes)) && !samples(sampler, Some(&no)));
        }
        assert!(
            samples(Sampler::AlwaysOn, Some(&no)) && samples(Sampler::ParentBasedAlwaysOn, None)
        );
        assert!(!samples(Sampler::AlwaysOff, Some(&yes)));
        assert!(!samples(Sampler::ParentBasedAlwaysOff, None));
        assert!(!samples(Sampler::TraceIdRatio, Some(&yes)));
    }
}
