//! The time of the packet thread that handshakes may take: a tenth, plus what idle time has saved. Receiving
//! messages and refusing them at the first check may take up to four fifths of that, at the expense of the
//! other work.
//!
//! Work is counted in nominal time: the number of X25519 operations that it takes, times the duration of one
//! on this machine. No clock is read to measure it, and a simulation counts the same.

use std::time::{Duration, Instant};

/// Handshakes may take one part in this many of the thread's time.
const SHARE: u64 = 10;
/// Default duration of one X25519.
pub(crate) const X25519: Duration = Duration::from_micros(100);
/// When no more than this many nanoseconds are left for answers there is load: senders have to prove their
/// address. It is the share of one second.
const RESERVE: u64 = 1_000_000_000 / SHARE;
/// Bounds of the number of handshakes that the budget for answers holds beyond [`RESERVE`], which peers may
/// start at once without a cookie after idle time. In between it is two per peer, because both ends may
/// start.
const MIN_BURST: u64 = 200;
const MAX_BURST: u64 = 2000;
/// Maximum number of our initiations that idle time saves up: after a restart every peer with a session is
/// sent one.
const MAX_INITIATIONS: u64 = 2000;
/// Maximum number of messages whose mac1 is checked at once.
const MAX_CHECKS: u64 = 20_000;
/// Load ends this long after the last message was refused, as in WireGuard for Linux.
const LOAD_LASTS: Duration = Duration::from_secs(1);
/// Time of a turn after which no further handshake message is received. The last message may exceed it.
const TURN: Duration = Duration::from_millis(1);
/// Delay before checking an exhausted budget again.
const PATIENCE: Duration = Duration::from_millis(1);

/// Work on handshakes, by its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Receive a handshake message and check its mac1.
    Check,
    /// Answer with a cookie reply, system call included.
    CookieReply,
    /// Find out which public key an initiation is from: an X25519.
    Identify,
    /// Answer an initiation of a peer: four X25519.
    Answer,
    /// Handle the response to an initiation of ours: two X25519.
    Conclude,
    /// Build boringtun's state of a peer: an X25519.
    Build,
    /// Send an initiation: two X25519, and a system call.
    Initiate,
}

impl Work {
    /// Returns the cost in thousandths of an X25519, including the hashes and system calls that the work
    /// needs.
    const fn thousandths(self) -> u64 {
        match self {
            Self::Check => 25,
            Self::CookieReply => 200,
            Self::Identify => 1200,
            Self::Build => 1000,
            Self::Answer => 4500,
            Self::Conclude => 2500,
            Self::Initiate => 2500,
        }
    }
}

/// Priority of a request under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// From the address of a peer, proved by a cookie.
    Known,
    /// From another address, proved by a cookie.
    Proven,
    /// From the address of a peer, without proof.
    Claimed,
    /// From another address, without proof.
    Unproven,
}

impl Standing {
    /// Returns the standing of a request. `is_known`: the source is the address of a peer. `is_proven`: the
    /// request carries a valid cookie.
    pub(crate) fn of(is_known: bool, is_proven: bool) -> Self {
        match (is_known, is_proven) {
            (true, true) => Self::Known,
            (false, true) => Self::Proven,
            (true, false) => Self::Claimed,
            (false, false) => Self::Unproven,
        }
    }
}

/// Three budgets that grow together. Checks, which are cheap and many, come first. Answers and initiations
/// share the rest; when one is full the other gets its share, so that neither starves the other.
#[derive(Debug)]
pub(crate) struct HandshakeBudget {
    x25519_nanos: u64,
    is_calibrated: bool,
    grown_at: Option<Instant>,
    /// Nanoseconds that were spent and have not grown back.
    checks: u64,
    answers: u64,
    initiations: u64,
    loaded: Option<Load>,
    spent_nanos: u64,
    /// Nanoseconds spent in the present turn, checks included.
    turn_nanos: u64,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    since: Instant,
    last: Instant,
}

impl HandshakeBudget {
    pub(crate) fn new() -> Self {
        Self {
            x25519_nanos: X25519.as_nanos() as u64,
            is_calibrated: false,
            grown_at: None,
            checks: 0,
            answers: 0,
            initiations: 0,
            loaded: None,
            spent_nanos: 0,
            turn_nanos: 0,
        }
    }

    /// Takes a measured duration of one X25519, within 10 µs and 10 ms. The shortest of all measurements
    /// counts: other programs only make it longer. Returns whether the budget grew by a tenth or more.
    pub(crate) fn calibrate(&mut self, x25519: Duration) -> bool {
        let measured = u64::try_from(x25519.as_nanos()).unwrap_or(u64::MAX).clamp(10_000, 10_000_000);
        let before = self.x25519_nanos;
        self.x25519_nanos = if self.is_calibrated { measured.min(before) } else { measured };
        self.is_calibrated = true;
        // The same work counts for as much as it would have.
        for taken in [&mut self.checks, &mut self.answers, &mut self.initiations] {
            *taken = (u128::from(*taken) * u128::from(self.x25519_nanos) / u128::from(before)) as u64;
        }
        self.x25519_nanos * 10 <= before * 9
    }

    fn cost(&self, work: Work) -> u64 {
        self.x25519_nanos * work.thousandths() / 1000
    }

    /// Grows the budgets by the time since the last call, and starts a turn. `now` never goes back.
    pub(crate) fn grow(&mut self, now: Instant) {
        let Some(before) = self.grown_at.replace(now).filter(|before| *before != now) else { return };
        let all = u64::try_from(now.duration_since(before).as_nanos()).unwrap_or(u64::MAX) / SHARE;
        self.turn_nanos = 0;
        let grown = all / 5 + give(&mut self.checks, all - all / 5);
        let surplus = give(&mut self.initiations, grown / 2);
        let surplus = give(&mut self.answers, grown - grown / 2 + surplus);
        give(&mut self.initiations, surplus);
    }

    /// Returns the nanoseconds of a full budget for answers.
    fn answers_size(&self, peers: usize) -> u64 {
        let handshakes = (2 * peers as u64).clamp(MIN_BURST, MAX_BURST);
        RESERVE + handshakes * (self.cost(Work::Identify) + self.cost(Work::Answer))
    }

    fn answers_left(&self, peers: usize) -> u64 {
        self.answers_size(peers).saturating_sub(self.answers)
    }

    /// Reports whether one more message may be received and its mac1 checked.
    pub(crate) fn has_check(&self) -> bool {
        self.checks + self.cost(Work::Check) <= MAX_CHECKS * self.cost(Work::Check)
    }

    /// Reports whether the present turn has time for handshakes.
    pub(crate) fn has_turn(&self) -> bool {
        self.turn_nanos < TURN.as_nanos() as u64
    }

    /// Reports whether senders have to prove their address now.
    pub(crate) fn is_under_load(&mut self, peers: usize, now: Instant) -> bool {
        if self.answers_left(peers) <= RESERVE {
            self.note_load(now);
        } else {
            self.loaded = self.loaded.filter(|load| now.duration_since(load.last) < LOAD_LASTS);
        }
        self.loaded.is_some()
    }

    /// Records that a message was refused for lack of budget.
    pub(crate) fn note_load(&mut self, now: Instant) {
        self.loaded.get_or_insert(Load { since: now, last: now }).last = now;
    }

    /// Returns when the present load began, without a break of a second.
    pub(crate) fn loaded_since(&self, now: Instant) -> Option<Instant> {
        self.loaded.filter(|load| now.duration_since(load.last) < LOAD_LASTS).map(|load| load.since)
    }

    /// Reports whether the budget admits a request under load. The more `requests` its source has sent
    /// lately, the fuller the budget has to be, so that sources with few requests are served first.
    pub(crate) fn admits(&self, standing: Standing, requests: u8, peers: usize) -> bool {
        /// Steps of the reserve.
        const STEPS: u64 = 32;
        /// Number of requests of a known address that do not count, because several peers may share the
        /// address.
        const HEAD_START: u64 = 8;
        let requests = u64::from(requests);
        let step = match standing {
            Standing::Known => requests.saturating_sub(HEAD_START),
            Standing::Proven => 1 + requests,
            // Without proof, the requests may be those of other senders that forged this source.
            Standing::Claimed => 3 + requests.saturating_sub(HEAD_START),
            Standing::Unproven => 3 + requests,
        };
        self.answers_left(peers) > step.min(STEPS - 1) * (RESERVE / STEPS)
    }

    /// Reports whether an initiation may be sent.
    pub(crate) fn has_initiation(&self) -> bool {
        self.initiations < MAX_INITIATIONS * self.cost(Work::Initiate)
    }

    /// Returns when to try to send an initiation again.
    pub(crate) fn next_initiation(&self) -> Option<Instant> {
        self.grown_at.map(|at| if self.has_initiation() { at } else { at + PATIENCE })
    }

    /// Counts work that is done now. It may exceed the budget; the excess has to grow back first.
    pub(crate) fn spend(&mut self, work: Work) {
        let cost = self.cost(work);
        self.turn_nanos += cost;
        let taken = match work {
            Work::Check => {
                self.checks += cost;
                return;
            }
            Work::Initiate => &mut self.initiations,
            _ => &mut self.answers,
        };
        *taken += cost;
        self.spent_nanos += cost;
    }

    /// Returns the nominal time of all work so far, without checks.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_nanos)
    }
}

/// Subtracts up to `nanos` from `taken`, and returns the rest of `nanos`.
fn give(taken: &mut u64, nanos: u64) -> u64 {
    let given = nanos.min(*taken);
    *taken -= given;
    nanos - given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(from: Instant, millis: u64) -> Instant {
        from + Duration::from_millis(millis)
    }

    /// Spends all of each kind of budget for ten seconds, and returns the shares of the time that checks and
    /// other work got.
    fn saturate(checks: bool, answers: bool, initiations: bool) -> (f64, f64) {
        let (mut budget, start) = (HandshakeBudget::new(), Instant::now());
        budget.grow(start);
        // All saved budget is spent.
        budget.answers = budget.answers_size(1);
        budget.initiations = MAX_INITIATIONS * budget.cost(Work::Initiate);
        budget.checks = MAX_CHECKS * budget.cost(Work::Check);
        let mut checked = Duration::ZERO;
        for millis in 1..=10_000 {
            budget.grow(secs(start, millis));
            if !checks {
                budget.checks = 0;
            }
            while checks && budget.has_check() {
                budget.spend(Work::Check);
                checked += Duration::from_nanos(budget.cost(Work::Check));
            }
            // A budget that nothing requests has long grown back.
            if !answers {
                budget.answers = 0;
            }
            while answers && budget.admits(Standing::Known, 0, 1) {
                budget.spend(Work::Identify);
            }
            if !initiations {
                budget.initiations = 0;
            }
            while initiations && budget.has_initiation() {
                budget.spend(Work::Initiate);
            }
        }
        (checked.as_secs_f64() / 10.0, budget.spent().as_secs_f64() / 10.0)
    }

    #[test]
    fn all_handshake_messages_together_take_a_tenth_of_the_time() {
        for checks in [false, true] {
            for (answers, initiations) in [(true, true), (true, false), (false, true)] {
                let (checked, worked) = saturate(checks, answers, initiations);
                let all = checked + worked;
                assert!(
                    (0.099..=0.102).contains(&all),
                    "{checks} {answers} {initiations}: {checked} + {worked}"
                );
            }
        }
    }

    #[test]
    fn checks_leave_a_fifth_to_the_rest() {
        let (checked, worked) = saturate(true, true, true);
        assert!((0.079..=0.081).contains(&checked) && worked >= 0.019, "{checked} + {worked}");
    }

    #[test]
    fn the_more_a_source_asks_the_later_it_is_served() {
        let mut budget = HandshakeBudget::new();
        budget.answers = budget.answers_size(1);
        let empty = budget.answers;
        let least = |budget: &mut HandshakeBudget, standing, requests| {
            // As long as there is load, at most the reserve is left.
            (0..32).find(|step| {
                budget.answers = empty - step * RESERVE / 32 - 1;
                budget.admits(standing, requests, 1)
            })
        };
        assert!(least(&mut budget, Standing::Known, 8) < least(&mut budget, Standing::Proven, 0));
        let order = [
            least(&mut budget, Standing::Known, 8),
            least(&mut budget, Standing::Proven, 1),
            least(&mut budget, Standing::Claimed, 8),
            least(&mut budget, Standing::Unproven, 1),
            least(&mut budget, Standing::Claimed, 12),
            least(&mut budget, Standing::Proven, 12),
            least(&mut budget, Standing::Unproven, 12),
        ];
        assert!(order.is_sorted() && order.iter().all(Option::is_some), "{order:?}");
        assert!(least(&mut budget, Standing::Unproven, u8::MAX).is_some(), "nothing is refused for ever");
    }

    #[test]
    fn load_ends_a_second_after_the_last_refusal() {
        let (mut budget, start) = (HandshakeBudget::new(), Instant::now());
        budget.grow(start);
        assert!(!budget.is_under_load(1, start));
        budget.answers = budget.answers_size(1);
        assert!(budget.is_under_load(1, start));
        budget.grow(secs(start, 3000));
        assert_eq!(budget.loaded_since(secs(start, 999)), Some(start));
        assert_eq!(budget.loaded_since(secs(start, 1000)), None);
        assert!(budget.is_under_load(1, secs(start, 999)));
        assert!(!budget.is_under_load(1, secs(start, 1000)));
        assert_eq!(budget.loaded_since(secs(start, 1000)), None);
    }

    #[test]
    fn a_turn_has_a_millisecond_for_handshakes() {
        let (mut budget, start) = (HandshakeBudget::new(), Instant::now());
        for turn in 0..2 {
            budget.grow(secs(start, turn));
            let mut spent = 0;
            while budget.has_turn() {
                spent += budget.cost(Work::Check);
                budget.spend(Work::Check);
            }
            let turn = TURN.as_nanos() as u64;
            assert!((turn..turn + budget.cost(Work::Check)).contains(&spent), "{spent} ns");
        }
    }

    #[test]
    fn a_full_budget_has_its_number_of_initiations() {
        let mut budget = HandshakeBudget::new();
        let sent = (0..10 * MAX_INITIATIONS).take_while(|_| {
            let has_initiation = budget.has_initiation();
            budget.spend(Work::Initiate);
            has_initiation
        });
        assert_eq!(sent.count() as u64, MAX_INITIATIONS);
    }

    #[test]
    fn a_measurement_that_makes_room_for_a_tenth_more_work_is_told() {
        let measured_before = |micros| {
            let mut budget = HandshakeBudget::new();
            budget.calibrate(Duration::from_micros(micros));
            budget
        };
        for (before, measured, makes_room) in
            [(100, 90, true), (100, 91, false), (100, 20, true), (100, 200, false)]
        {
            let made_room = measured_before(before).calibrate(Duration::from_micros(measured));
            assert_eq!(made_room, makes_room, "{before} µs and then {measured} µs");
        }
    }

    #[test]
    fn a_slow_machine_does_less() {
        let mut budget = HandshakeBudget::new();
        let fast = budget.cost(Work::Answer);
        budget.calibrate(Duration::from_micros(500));
        assert_eq!(budget.cost(Work::Answer), 5 * fast);
    }

    #[test]
    fn the_shortest_measurement_counts_also_for_work_that_was_done() {
        let mut budget = HandshakeBudget::new();
        budget.calibrate(Duration::from_micros(200));
        while budget.has_check() {
            budget.spend(Work::Check);
        }
        let taken = budget.checks / budget.cost(Work::Check);
        for (measured, counts) in [(50, 50), (80, 50)] {
            budget.calibrate(Duration::from_micros(measured));
            assert_eq!(budget.x25519_nanos, counts * 1000);
            assert_eq!(budget.checks / budget.cost(Work::Check), taken);
        }
    }
}
