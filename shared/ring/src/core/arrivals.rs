//! Ring links that other devices opened and that are not used yet.
//!
//! Only a link's first frame says which epoch it belongs to, and a link of an older epoch may arrive last. So
//! several links of one device wait, at most [`OF_ONE_MAX`]; nobody waits for any of them.

use super::{Bug, DeviceId, Epoch, LinkId, Planted};

/// Most links of one device that wait.
pub const OF_ONE_MAX: usize = 4;

/// A link that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrival {
    link: LinkId,
    from: DeviceId,
    /// Unknown until its first frame has come.
    entered: Option<Epoch>,
}

/// The links that wait, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrivals {
    links: Vec<Arrival>,
    planted: Planted,
}

/// The result of [`Arrivals::take`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// The link, which waits no longer.
    pub link: Option<LinkId>,
    /// Links of the same device that belong to older epochs; they wait no longer and are to be closed.
    pub old: Vec<LinkId>,
}

impl Arrivals {
    /// Returns none that wait, with this bug.
    pub fn new(planted: Planted) -> Self {
        Self { links: Vec::new(), planted }
    }

    /// Adds a link. If its device has too many, returns the oldest one, which waits no longer and is to be
    /// closed.
    pub fn add(&mut self, link: LinkId, from: DeviceId) -> Option<LinkId> {
        let oldest = (self.count(from) >= OF_ONE_MAX)
            .then(|| self.links.iter().position(|other| other.from == from))
            .flatten()
            .map(|at| self.links.remove(at).link);
        self.links.push(Arrival { link, from, entered: None });
        oldest
    }

    /// Returns how many links of a device wait.
    pub fn count(&self, from: DeviceId) -> usize {
        self.links.iter().filter(|other| other.from == from).count()
    }

    /// Returns whether this link waits.
    pub fn holds(&self, link: LinkId) -> bool {
        self.links.iter().any(|other| other.link == link)
    }

    /// Records the epoch that a link's first frame names. Returns false if the link does not wait, or has
    /// named an epoch before.
    pub fn entered(&mut self, link: LinkId, epoch: Epoch) -> bool {
        let waiting = self.links.iter_mut().find(|other| other.link == link && other.entered.is_none());
        waiting.map(|waiting| waiting.entered = Some(epoch)).is_some()
    }

    /// Takes the link of this device that entered this epoch, if it has come.
    pub fn take(&mut self, from: DeviceId, epoch: Epoch) -> Taken {
        let any = self.planted.is(Bug::OldLinkTaken);
        let fits = |waiting: &Arrival| {
            waiting.from == from && (waiting.entered == Some(epoch) || any && waiting.entered.is_some())
        };
        let at = self.links.iter().position(fits);
        let link = at.map(|at| self.links.remove(at).link);
        let is_old = |waiting: &Arrival| {
            waiting.from == from && waiting.entered.is_some_and(|entered| entered < epoch)
        };
        let old = self.links.extract_if(.., |waiting| is_old(waiting)).map(|waiting| waiting.link).collect();
        Taken { link, old }
    }

    /// Takes every link of this device, whatever it entered.
    pub fn take_all(&mut self, from: DeviceId) -> Vec<LinkId> {
        self.links.extract_if(.., |waiting| waiting.from == from).map(|waiting| waiting.link).collect()
    }

    /// Removes a link. Returns whether it waited.
    pub fn remove(&mut self, link: LinkId) -> bool {
        let at = self.links.iter().position(|other| other.link == link);
        at.map(|at| self.links.remove(at)).is_some()
    }

    /// Removes all links and returns them, to be closed.
    pub fn clear(&mut self) -> Vec<LinkId> {
        self.links.drain(..).map(|waiting| waiting.link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceId = DeviceId([1; 32]);
    const B: DeviceId = DeviceId([2; 32]);

    #[test]
    fn a_link_of_an_older_epoch_that_comes_late_takes_no_other_ones_place() {
        let mut arrivals = Arrivals::default();
        for (link, epoch) in [(1, 2), (3, 1), (5, 3)] {
            assert_eq!(arrivals.add(LinkId(link), A), None);
            assert!(arrivals.entered(LinkId(link), Epoch(epoch)));
        }
        let taken = arrivals.take(A, Epoch(2));
        assert_eq!(taken, Taken { link: Some(LinkId(1)), old: vec![LinkId(3)] });
        assert!(arrivals.holds(LinkId(5)) && arrivals.count(A) == 1, "the newer one stays");
        assert_eq!(arrivals.take(A, Epoch(2)), Taken::default());
        assert_eq!(arrivals.take(A, Epoch(3)).link, Some(LinkId(5)));
    }

    #[test]
    fn a_link_is_taken_only_after_its_first_frame_and_from_its_device() {
        let mut arrivals = Arrivals::default();
        arrivals.add(LinkId(1), A);
        assert_eq!(arrivals.take(A, Epoch(1)), Taken::default());
        assert!(arrivals.entered(LinkId(1), Epoch(1)));
        assert!(!arrivals.entered(LinkId(1), Epoch(2)), "only once");
        assert!(!arrivals.entered(LinkId(3), Epoch(1)), "it does not wait");
        assert_eq!(arrivals.take(B, Epoch(1)), Taken::default());
        assert_eq!(arrivals.take(A, Epoch(1)).link, Some(LinkId(1)));
    }

    #[test]
    fn of_many_links_of_one_device_the_latest_wait() {
        let mut arrivals = Arrivals::default();
        arrivals.add(LinkId(1), B);
        let dropped: Vec<_> = (0..10).filter_map(|at| arrivals.add(LinkId(2 * at + 3), A)).collect();
        assert_eq!(dropped, (0..6).map(|at| LinkId(2 * at + 3)).collect::<Vec<_>>());
        assert_eq!((arrivals.count(A), arrivals.count(B)), (OF_ONE_MAX, 1));
        assert!(arrivals.remove(LinkId(1)) && !arrivals.remove(LinkId(1)));
        arrivals.add(LinkId(1), B);
        assert_eq!(arrivals.take_all(B), [LinkId(1)]);
        assert_eq!(arrivals.clear().len(), OF_ONE_MAX);
        assert!(!arrivals.holds(LinkId(21)));
    }

    #[test]
    fn the_planted_bug_takes_any_epoch() {
        let mut arrivals = Arrivals::new(Planted::bug(Bug::OldLinkTaken));
        arrivals.add(LinkId(1), A);
        arrivals.entered(LinkId(1), Epoch(1));
        assert_eq!(arrivals.take(A, Epoch(2)).link, Some(LinkId(1)));
    }
}
