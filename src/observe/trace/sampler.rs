//! Sampling by the trace ID, as by OpenTelemetry's `TraceIDRatioBased`: every process decides alike for one trace.

/// Samples a ratio of all trace IDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceIdRatioSampler {
    /// IDs whose lower half, without its last bit, is below are sampled.
    bound: u64,
}

impl TraceIdRatioSampler {
    pub(super) fn per_million(rate: u32) -> TraceIdRatioSampler {
        let ratio = f64::from(rate) / 1_000_000.0;
        TraceIdRatioSampler { bound: (ratio * (1_u64 << 63) as f64) as u64 }
    }

    pub(super) fn samples(self, trace_id: u128) -> bool {
        (trace_id as u64) >> 1 < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_ratio_bounds() {
        for id in [1, u128::from(u64::MAX), u128::MAX, 1 << 64] {
            assert!(!TraceIdRatioSampler::per_million(0).samples(id));
            assert!(TraceIdRatioSampler::per_million(1_000_000).samples(id));
        }
        let half = TraceIdRatioSampler::per_million(500_000);
        assert!(half.samples(u128::from(u64::MAX / 2)) && !half.samples(u128::from(u64::MAX / 2 + 1)));
        // The upper half does not count.
        assert!(half.samples(u128::MAX << 64 | 7));
    }

    #[test]
    fn sampler_ratio_of_random_ids() {
        let mut random = fastrand::Rng::with_seed(1);
        let sampler = TraceIdRatioSampler::per_million(100_000);
        let sampled = (0..100_000).filter(|_| sampler.samples(random.u128(..))).count();
        assert!((9_500..10_500).contains(&sampled), "{sampled}");
    }
}
