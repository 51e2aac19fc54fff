//! Policy `soft`: shares by time slices, which lend idle time by themselves.
//!
//! The card goes round all channel groups that have work and gives each its slice. So a container's
//! slice is its weight, divided by the number of its groups that work. That alone misses: a program
//! that waits for its kernels now and then gives up the rest of its slice, and cannot be preempted
//! at every instant. So each mediator compares what all containers of the card achieved with their
//! weights, and makes its own slice longer or shorter until they agree.
//!
//! Only those that had work all the time are compared: who has none is not owed anything, and what
//! it leaves goes to the others by the hardware's own hand.
//!
//! However many groups a container has, no slice is shorter than a switch is worth. So where more
//! of them work than its share has slices for, only so many are on the card at a time, others in
//! turn ([`Steering::on_card`]). Programs have several groups that never work, so those that exist
//! do not count, except that no burst of them is to be much longer than a share.

/// Longest sum of all slices of a card, so that nobody who has work waits longer for its turn.
pub const LONGEST_ROUND_US: u64 = 50_000;

/// Interval at which slices are adjusted.
const INTERVAL_US: u64 = 200_000;
/// The slice of the container with the least weight, before steering. Shorter ones cost more than
/// they are worth: a switch takes some 80 microseconds, and in the middle of a kernel half a
/// millisecond.
const LEAST_BASE_US: f64 = 3_000.0;
/// All slices together, before steering.
const ROUND_US: f64 = 36_000.0;
/// However many share the card, and however unequal they are.
const SHORTEST_US: f64 = 250.0;
/// Shortest slice for which groups work at the same time: where more of them work than have so long
/// a slice each in the container's share, they take turns. With the shortest slices, a quarter of
/// the card went to switches (16 processes beside one, H200, 580.159.04).
const WORTHWHILE_US: f64 = 500.0;
/// Groups of a container that always fit, however small its share is.
const LEAST_FIT: usize = 4;
/// Most that all groups of a container have when they begin at once, before anybody has seen it, as
/// a multiple of its share.
const BURST: usize = 16;
const LONGEST_US: f64 = 45_000.0;
/// Part of an error that is corrected at once, and the greatest that is believed.
const GAIN: f64 = 0.25;
const MOST_ERROR: f64 = 0.7;
/// Greatest distance of steering from the weights.
const MOST_FACTOR: f64 = 6.0;
/// The part of an interval during which somebody must have had work to be compared.
const HUNGRY: f64 = 0.9;
/// A change that is smaller is not worth its calls.
const WORTH: f64 = 0.02;

/// Measurements of one container of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftMember {
    /// Its weight among all.
    pub weight: u32,
    /// Time that it had the compute engine, in all
    /// ([`Residency::used_us`](super::Residency::used_us)).
    pub used_us: u64,
    /// Time during which it had no work, in all
    /// ([`Residency::idle_us`](super::Residency::idle_us)).
    pub idle_us: u64,
}

/// Finds one container's slice on one card. Pure: it is given the time.
#[derive(Debug, Clone)]
pub struct Steering {
    /// Factor by which the slice is multiplied.
    factor: f64,
    looked_us: u64,
    closed_us: u64,
    before: Vec<SoftMember>,
    slice_us: Option<u64>,
    /// Its part of a round, all groups together.
    share_us: f64,
}

/// A container's channel groups on the compute engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Those that can do work.
    pub all: usize,
    /// Those that were seen to do some of late; `None`: not known.
    pub working: Option<usize>,
}

impl Groups {
    /// Number of groups among which a container's part of a round is divided.
    fn divisor(self, fit: usize) -> usize {
        match self.working {
            None | Some(0) => self.all.max(1),
            // Those that are on the card at a time.
            Some(working) if working > fit => fit,
            Some(working) => working.max(self.all.div_ceil(BURST)),
        }
    }

    /// Number of groups to have on the card at a time, so that about `fit` work; `None`: all.
    fn on_card(self, fit: usize) -> Option<usize> {
        let working = self.working.filter(|working| *working > fit)?;
        let on_card = self.all.saturating_mul(fit).div_ceil(working).max(1);
        (on_card < self.all).then_some(on_card)
    }
}

/// The slice of each of a container's groups that have so much of a round together.
pub fn slice_of(share_us: u64, groups: Groups) -> u64 {
    rounded(divided(as_f64(share_us), groups))
}

/// Number of a container's groups to have on the card at a time, in turn, where `share_us` of a
/// round is theirs together; `None`: all.
pub fn on_card(share_us: u64, groups: Groups) -> Option<usize> {
    groups.on_card(fit(as_f64(share_us)))
}

/// Slice as of [`slice_of`], not rounded.
fn divided(share_us: f64, groups: Groups) -> f64 {
    let divisor = u64::try_from(groups.divisor(fit(share_us))).unwrap_or(u64::MAX);
    (share_us / as_f64(divisor)).clamp(SHORTEST_US, LONGEST_US)
}

/// Number of groups that get a worthwhile slice each in `share_us` of a round.
fn fit(share_us: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 50 000 / 500")]
    let fit = (share_us / WORTHWHILE_US) as usize;
    fit.max(LEAST_FIT)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a few thousands")]
fn rounded(slice_us: f64) -> u64 {
    slice_us.round() as u64
}

impl Default for Steering {
    fn default() -> Self {
        Self { factor: 1.0, looked_us: 0, closed_us: 0, before: Vec::new(), slice_us: None, share_us: 0.0 }
    }
}

impl Steering {
    /// The slice of each of its channel groups; `None`: as before. To be asked as often as is
    /// convenient.
    ///
    /// `others`: always in the same order; when they are others or other weights, comparing begins
    /// anew. Without a log of switches, all `used_us` are 0 and slices follow the weights alone.
    /// `closed_us`: for how long all of them were off the card together, in all (what is left
    /// beside windows is shared like this).
    pub fn slice_us(
        &mut self,
        now_us: u64,
        own: SoftMember,
        groups: Groups,
        others: &[SoftMember],
        closed_us: u64,
    ) -> Option<u64> {
        let members: Vec<SoftMember> = std::iter::once(own).chain(others.iter().copied()).collect();
        let is_same = self.before.len() == members.len()
            && self.before.iter().zip(&members).all(|(before, now)| before.weight == now.weight);
        let passed_us = now_us.saturating_sub(self.looked_us);
        if !is_same {
            self.factor = 1.0;
        } else if passed_us < INTERVAL_US {
            return None;
        } else if let Some(error) = error(&self.before, &members, passed_us, closed_us.saturating_sub(self.closed_us)) {
            let step = (GAIN * error.clamp(-MOST_ERROR, MOST_ERROR)).exp();
            self.factor = (self.factor * step).clamp(MOST_FACTOR.recip(), MOST_FACTOR);
        }
        (self.looked_us, self.closed_us) = (now_us, closed_us);
        self.before = members;
        self.share_us = share(&self.before, self.factor);
        let wanted = divided(self.share_us, groups);
        let is_worth = |slice_us: u64| (as_f64(slice_us) - wanted).abs() > WORTH * wanted;
        if !self.slice_us.is_none_or(is_worth) {
            return None;
        }
        let slice_us = rounded(wanted);
        self.slice_us = Some(slice_us);
        Some(slice_us)
    }

    /// Number of its groups to have on the card at a time, in turn; `None`: all.
    pub fn on_card(&self, groups: Groups) -> Option<usize> {
        groups.on_card(fit(self.share_us))
    }
}

/// Error of the first member's use against its weight, as a logarithm (positive: it had less);
/// `None`: nobody to compare with.
fn error(before: &[SoftMember], now: &[SoftMember], passed_us: u64, closed_us: u64) -> Option<f64> {
    let open_us = as_f64(passed_us.saturating_sub(closed_us));
    let hungry = before.iter().zip(now).map(|(before, now)| {
        let used = as_f64(now.used_us.saturating_sub(before.used_us));
        let idle = as_f64(now.idle_us.saturating_sub(before.idle_us).saturating_sub(closed_us));
        let is_hungry = used > 0.0 && now.weight > 0 && idle <= (1.0 - HUNGRY) * open_us;
        is_hungry.then(|| (f64::from(now.weight), used))
    });
    let hungry: Vec<Option<(f64, f64)>> = hungry.collect();
    let own = (*hungry.first()?)?;
    let all: Vec<(f64, f64)> = hungry.into_iter().flatten().collect();
    if all.len() < 2 {
        return None;
    }
    let weights: f64 = all.iter().map(|(weight, _)| weight).sum();
    let used: f64 = all.iter().map(|(_, used)| used).sum();
    let lacks = |(weight, had): (f64, f64)| (weight / weights / (had / used)).ln();
    // All steer at once: without that, noise would make all slices longer and longer.
    let common: f64 = all.iter().map(|member| member.0 / weights * lacks(*member)).sum();
    Some(lacks(own) - common)
}

/// Microseconds of a round that the first member may have.
fn share(members: &[SoftMember], factor: f64) -> f64 {
    let weights = members.iter().map(|member| f64::from(member.weight.max(1)));
    let least = weights.clone().fold(f64::INFINITY, f64::min);
    let sum: f64 = weights.clone().sum();
    let unit = (LEAST_BASE_US / least).min(ROUND_US / sum);
    let own = weights.clone().next().unwrap_or(1.0) * unit * factor;
    // What the others have, as far as weights say: no turn of all takes too long.
    let others = (sum - weights.clone().next().unwrap_or(0.0)) * unit;
    own.min((as_f64(LONGEST_ROUND_US) - others).max(SHORTEST_US))
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of years fit")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
