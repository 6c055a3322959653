use std::collections::BTreeMap;

use crate::cache::{BlockHash, Cache};
use crate::deadlines::Deadlines;
use crate::evidence::{Evidence, Owes};
use crate::ids::{Incarnation, RoomId};
use crate::ledger::worker::closing::Closing;
use crate::ledger::worker::gate::Gate;
use crate::ledger::worker::{Base, Config, EngineWatch, LastWord, Orders, Part};
use crate::lru::Lru;
use crate::message::{FromWorker, Refusal};
use crate::pages::PageCounts;
use crate::pause::{Pause, PauseDetector};
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::settings::Settings;
use crate::spec::RoomSpec;
use crate::time::{Millis, Moment};

/// What a part's pure functions may look at besides itself.
pub(crate) struct Env<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) engine: &'a EngineWatch,
    /// As [`Table::stalled`].
    pub(crate) stalled: Reason,
    pub(crate) now: Moment,
}

/// What is remembered of an ended room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gone {
    pub(crate) end: PartEnd,
    pub(crate) evidence: Evidence,
    /// Commit is sticky: a hello for it is answered Committed.
    pub(crate) committed: bool,
    pub(crate) token: u64,
}

/// What ended a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    /// A message or an event of this node: the debt is whatever it is now.
    Now,
    /// Somebody in particular was waited for.
    Waited(Owes, Moment),
    /// The peer said so, and what it saw: it counts as that node's report.
    Relayed(Evidence),
}

/// Keys of the deadline queue. At the same moment the engine comes first: if it is wedged, it is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    Engine,
    Fence,
    Closing(RoomId),
    Room(RoomId),
}

/// All parts of a worker, and the permits and pages around them.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Table<P> {
    pub(crate) config: Config,
    pub(crate) live: BTreeMap<RoomId, P>,
    pub(crate) ended: Lru<RoomId, Gone>,
    pub(crate) closing: BTreeMap<RoomId, Closing>,
    pub(crate) pages: PageCounts,
    /// At D always empty.
    pub(crate) cache: Cache,
    pub(crate) engine: EngineWatch,
    pub(crate) deadlines: Deadlines<Key>,
    pub(crate) gate: Gate,
    /// Permits that the engine holds.
    pub(crate) engine_permits: u32,
    /// Messages of another epoch or incarnation, and late ones that were answered and not applied.
    pub(crate) fenced: u64,
    pause: PauseDetector,
    /// The node was stopped and only messages are applied for now.
    in_grace: bool,
    seq: u64,
    /// The time of the last step.
    pub(crate) now: Moment,
    /// Rooms of which something changed in this step: their state is told and their deadline set at its end.
    pub(super) touched: Vec<RoomId>,
}

impl<P: Part> Table<P> {
    pub(crate) fn new(config: Config, now: Moment) -> Self {
        let mut pause = PauseDetector::for_settings(&config.settings);
        let _ = pause.observe(now);
        Self {
            live: BTreeMap::new(),
            ended: Lru::new(config.settings.remembered_rooms as usize),
            closing: BTreeMap::new(),
            pages: PageCounts::all_free(config.total_pages),
            cache: Cache::new(config.cached_pages()),
            engine: EngineWatch::new(config.settings.progress_ttl, now),
            deadlines: Deadlines::new(),
            gate: Gate::default(),
            engine_permits: 0,
            fenced: 0,
            pause,
            in_grace: false,
            seq: 0,
            now,
            touched: Vec::new(),
            config,
        }
    }

    // === time ===

    /// Time never runs backwards here, whatever the caller's clock does.
    pub(crate) fn advance(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        self.now
    }

    /// Looks at the clock; `true` exactly once after a stop: what is overdue or cut off is to be judged now.
    pub(crate) fn observe(&mut self, now: Moment) -> bool {
        match self.pause.observe(now) {
            Pause::Running => false,
            Pause::Paused { fresh, .. } => {
                self.in_grace = true;
                if fresh {
                    self.live
                        .values_mut()
                        .for_each(|part| part.base_mut().was_stopped = true);
                }
                false
            }
            Pause::Resumed { since } => {
                self.in_grace = false;
                self.engine.restart(now);
                self.shift_closing(now.since(since), now);
                true
            }
        }
    }

    /// A stop is nobody's delay: the fences of closing rooms run on from where they stood.
    fn shift_closing(&mut self, by: Millis, now: Moment) {
        for (room, closing) in &mut self.closing {
            closing.shift(by, now);
            self.deadlines
                .set(Key::Closing(*room), closing.due(&self.config.settings));
        }
    }

    pub(crate) const fn in_grace(&self) -> bool {
        self.in_grace
    }

    /// When a look at the clock is needed: at the earliest deadline, and while there is any at least every report period, or
    /// the gap would be taken for a stop.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let due = if self.in_grace {
            self.pause.until()
        } else {
            self.deadlines.next()
        };
        due.map(|at| at.min(self.now + self.config.settings.report_period))
    }

    pub(crate) fn env(&self, now: Moment) -> Env<'_> {
        Env {
            settings: &self.config.settings,
            engine: &self.engine,
            stalled: self.stalled(),
            now,
        }
    }

    /// What a room ends with that waits for this node's engine, if that owes and shows nothing.
    pub(crate) const fn stalled(&self) -> Reason {
        self.config.engine.stalled()
    }

    // === rooms ===

    /// The part, to change it.
    pub(crate) fn edit(&mut self, room: RoomId) -> Option<&mut P> {
        let part = self.live.get_mut(&room)?;
        self.touched.push(room);
        Some(part)
    }

    /// Whether a room may be opened here; `reserved` are the tokens this node would reserve pages for.
    pub(crate) fn refusal(&self, spec: &RoomSpec, meant: Incarnation, reserved: u32) -> Option<Refusal> {
        let exists =
            |room| self.live.contains_key(room) || self.closing.contains_key(room) || self.ended.get(room).is_some();
        if meant != self.config.incarnation {
            Some(Refusal::WrongIncarnation)
        } else if exists(&spec.room) {
            Some(Refusal::Exists)
        } else if !self.gate.open(&self.engine) {
            Some(Refusal::Draining)
        } else if !self.config.fits(spec.prompt_tokens, spec.max_tokens, reserved) {
            Some(Refusal::TooLarge)
        } else if self.live.len() + self.closing.len() >= self.config.settings.permits as usize {
            Some(Refusal::NoPermit)
        } else {
            None
        }
    }

    /// A new part in the table.
    /// `token`: the room's secret, told to R; 0 at P.
    pub(crate) fn begin<E: Orders>(
        &mut self,
        spec: RoomSpec,
        token: u64,
        now: Moment,
        make: impl FnOnce(Base) -> P,
        out: &mut Vec<E>,
    ) {
        self.seq += 1;
        let room = spec.room;
        self.live.insert(room, make(Base::new(spec, self.seq, now)));
        self.touched.push(room);
        out.push(E::begin(room));
        out.push(E::tell(
            room,
            FromWorker::Admitted {
                data_addr: String::new(),
                token,
            },
        ));
    }

    /// Ends a part, once: one transition that comes first, clean-up after it. Returns what the part was.
    pub(crate) fn end<E: Orders>(
        &mut self,
        room: RoomId,
        end: PartEnd,
        how: Ending,
        now: Moment,
        out: &mut Vec<E>,
    ) -> Option<P> {
        let part = self.live.remove(&room)?;
        self.deadlines.set(Key::Room(room), None);
        let (owes, since) = match how {
            Ending::Now | Ending::Relayed(_) => part.debt(&self.env(now)),
            Ending::Waited(owes, since) => (owes, since),
        };
        let own = part.base().evidence(&self.env(now), owes, since);
        let (evidence, relayed) = match how {
            Ending::Relayed(theirs) => (theirs, true),
            Ending::Now | Ending::Waited(..) => (own, false),
        };
        self.pages.quarantine(part.base().pages);
        self.cache.part_over(part.base().shared(), &mut self.pages);
        let gone = Gone {
            end,
            evidence: own,
            committed: part.committed(),
            token: part.token(),
        };
        self.ended.insert(room, gone);
        out.push(E::tell(room, FromWorker::Ended { end, evidence, relayed }));
        self.clean_up(room, &part, end, own, relayed, out);
        out.push(E::end(room));
        // What its engine failed on may be what it was to read: the next one computes it anew.
        let doubted = matches!(
            end,
            PartEnd::Failed(Reason::KvCorrupt | Reason::EngineFailed | Reason::InternalError)
        );
        if doubted && !planted::corrupt_page_kept() {
            out.extend(E::evict(self.cache.doom(part.base().shared(), &mut self.pages)));
        }
        let heard = !matches!(how, Ending::Waited(..));
        self.close(room, &part, end, heard, now, out);
        Some(part)
    }

    /// Pages for a room: so many of its own, beside those of the prefix cache that it reads from now on. What is cached and read
    /// by nobody is as good as free. Whether there were enough (else nothing changes).
    pub(crate) fn hold<E: Orders>(&mut self, own: u32, shared: &[BlockHash], out: &mut Vec<E>) -> bool {
        if own + self.cache.unread(shared) > self.pages.available() {
            return false;
        }
        self.cache.pin(shared, &mut self.pages);
        let short = own.saturating_sub(self.pages.free);
        out.extend(E::evict(self.cache.evict(short, &mut self.pages)));
        self.pages.hold(own)
    }

    /// The orders that make others let go of the room.
    fn clean_up<E: Orders>(
        &mut self,
        room: RoomId,
        part: &P,
        end: PartEnd,
        own: Evidence,
        relayed: bool,
        out: &mut Vec<E>,
    ) {
        let speaking = match (part.last_word(end, relayed), end) {
            (LastWord::Fail(epoch), PartEnd::Failed(reason)) => {
                out.push(E::say_fail(room, epoch, reason, own));
                Some(epoch)
            }
            (LastWord::Finish(epoch) | LastWord::Fail(epoch), _) => {
                out.push(E::finish_session(room, epoch));
                Some(epoch)
            }
            // What was said may still be on its way: a close with unread bytes would eat it. The grace ends it.
            (LastWord::Spoken(epoch), _) => Some(epoch),
            (LastWord::Nothing, _) => None,
        };
        for epoch in part.base().sessions.iter().filter(|epoch| Some(**epoch) != speaking) {
            out.push(E::kill_session(room, *epoch));
        }
        if part.base().engine {
            out.push(E::cancel_engine(room));
        }
    }
}
