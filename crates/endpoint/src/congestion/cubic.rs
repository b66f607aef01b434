//! CUBIC (RFC 9438): the window follows a cubic function of the time since it was reduced, so that a long
//! round trip does not make it grow more slowly.

use super::Acknowledged;

/// Nanoseconds of a millisecond: the cubic function counts in milliseconds.
const MS: u64 = 1_000_000;
/// Longest time in the function, in milliseconds, so that its cube fits.
const MAX_TIME: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// W_max: the window before the last reduction, or less where it gives way to others. 0: unknown.
    most: u64,
    /// cwnd_prior: the window before the last reduction.
    prior: u64,
    /// The stage of congestion avoidance since then; `None` before its first acknowledgement.
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: u64,
    /// The plateau of the function, and K, the milliseconds until it.
    plateau: u64,
    rise: u64,
    /// W_est: the window that NewReno would have on average, and the rest of its last division.
    reno: u64,
    reno_rest: u64,
}

impl Cubic {
    /// Section 4.2 to 4.5. Returns the new window.
    pub(super) fn grow(&mut self, window: u64, bytes: u64, acknowledged: &Acknowledged) -> u64 {
        let Acknowledged { mss, now, rtt, .. } = *acknowledged;
        let Self { most, prior, .. } = *self;
        let epoch = self.epoch.get_or_insert_with(|| {
            let plateau = most.max(window);
            // C is 0.4 segments a second cubed.
            let cube = u128::from(plateau - window) * 2_500_000_000 / u128::from(mss.max(1));
            Epoch { start: now, plateau, rise: cube_root(cube), reno: window, reno_rest: 0 }
        });
        // Alpha is 3 (1 - beta) / (1 + beta) = 9/17 until the window is what it was.
        let (numerator, denominator) = if epoch.reno < prior { (9, 17) } else { (1, 1) };
        let unit = denominator * window.max(1);
        let growth = epoch.reno_rest + numerator * bytes * mss;
        (epoch.reno, epoch.reno_rest) = (epoch.reno + growth / unit, growth % unit);

        let elapsed = now.saturating_sub(epoch.start);
        if epoch.at(elapsed, mss) < epoch.reno {
            return window.max(epoch.reno);
        }
        let target = epoch.at(elapsed.saturating_add(rtt), mss).clamp(window, window + window / 2);
        window + (target - window) * bytes.min(window) / window.max(1)
    }

    /// Time in which the window was not used does not count (section 4.2).
    pub(super) fn wait(&mut self, elapsed: u64) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = epoch.start.saturating_add(elapsed);
        }
    }

    /// Sections 4.6 to 4.8. Returns the new threshold.
    pub(super) fn reduce(&mut self, window: u64, is_timeout: bool) -> u64 {
        // Fast convergence: who has less than before leaves room for others.
        let gives_way = window < self.most;
        self.most = match (is_timeout, gives_way) {
            (true, _) => 0,
            (_, true) => window / 20 * 17,
            (_, false) => window,
        };
        self.prior = window;
        self.epoch = None;
        window / 10 * 7
    }
}

impl Epoch {
    /// W_cubic.
    fn at(&self, elapsed: u64, mss: u64) -> u64 {
        let time = i128::from((elapsed / MS).min(MAX_TIME)) - i128::from(self.rise);
        let rise = 4 * time * time * time * i128::from(mss) / 10_000_000_000;
        u64::try_from(i128::from(self.plateau) + rise).unwrap_or(if rise < 0 { 0 } else { u64::MAX })
    }
}

/// Returns the greatest number of which the cube is not above `value`, at most [`MAX_TIME`].
fn cube_root(value: u128) -> u64 {
    let mut root = 0;
    for bit in (0..30).rev() {
        let next: u128 = root | 1 << bit;
        if next * next * next <= value {
            root = next;
        }
    }
    (root as u64).min(MAX_TIME)
}

#[cfg(test)]
mod tests {
    use super::super::Avoidance;
    use super::super::tests::{ACK, MS, MSS, round};
    use super::super::{Acknowledged, Congestion, CongestionControl};
    use super::*;

    #[test]
    fn a_cube_root_is_exact() {
        for root in [1, 2, 4000, 123_456, MAX_TIME] {
            let cube = u128::from(root).pow(3);
            assert_eq!((cube_root(cube), cube_root(cube + 1)), (root, root));
            assert_eq!(cube_root(cube - 1), root - 1);
        }
        assert_eq!(cube_root(u128::MAX), MAX_TIME);
    }

    /// 1,000 segments, and the loss after which they were 700.
    fn reduced() -> Congestion {
        let mut congestion = Congestion::new(CongestionControl::Cubic, MSS);
        congestion.window = 1000 * MSS;
        congestion.on_loss(1000 * MSS, MSS);
        assert_eq!(congestion.window(), 700 * MSS);
        congestion
    }

    #[test]
    fn the_window_is_back_after_k_and_rises_again_after_it() {
        let (mut congestion, mut now) = (reduced(), 0);
        // K is the cube root of 300 / 0.4: 9.09 s.
        let windows: Vec<u64> = (0..150).map(|_| round(&mut congestion, &mut now) / MSS).collect();
        assert!((870..890).contains(&windows[22]), "{}", windows[22]);
        assert!((995..=1000).contains(&windows[88]), "{}", windows[88]);
        // Six seconds after it: 1000 + 0.4 * 216 segments.
        assert!((1070..1095).contains(&windows[149]), "{}", windows[149]);
        assert!(windows.is_sorted());
    }

    #[test]
    fn a_second_loss_below_the_plateau_gives_way() {
        let mut congestion = reduced();
        congestion.on_loss(700 * MSS, MSS);
        let Avoidance::Cubic(cubic) = congestion.avoidance else { panic!() };
        assert_eq!((congestion.window(), cubic.most, cubic.prior), (490 * MSS, 595 * MSS, 700 * MSS));
    }

    #[test]
    fn a_short_path_grows_as_fast_as_new_reno() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, MSS);
        congestion.on_loss(10 * MSS, MSS);
        let mut now = 0;
        let mut grown = |rounds| {
            for _ in 0..rounds * 10 {
                now += MS / 10;
                let flight = congestion.window();
                congestion.on_ack(Acknowledged { bytes: flight / 10, flight, now, rtt: MS, ..ACK });
            }
            congestion.window() / MSS
        };
        // From 7 segments by 9/17 of one each millisecond up to 10, then by one.
        assert_eq!((grown(4), grown(20)), (9, 28));
    }

    #[test]
    fn time_that_does_not_pass_or_jumps_is_survived() {
        for rtt in [0, 1, u64::MAX] {
            let mut congestion = reduced();
            for now in [0, 0, 1, u64::MAX, 5] {
                let flight = congestion.window();
                congestion.on_ack(Acknowledged { bytes: flight, flight, now, rtt, ..ACK });
                assert!((flight..=flight * 2).contains(&congestion.window()));
            }
        }
    }

    #[test]
    fn an_idle_time_does_not_open_the_window() {
        let (mut congestion, mut now) = (reduced(), 0);
        round(&mut congestion, &mut now);
        let before = congestion.window();
        now += 60_000 * MS;
        let ack = |flight| Acknowledged { bytes: MSS, flight, now, ..ACK };
        congestion.on_ack(ack(MSS));
        congestion.on_ack(ack(before));
        assert!(congestion.window() < before + MSS, "{}", congestion.window());
    }
}
