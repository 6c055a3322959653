//! Those who ask: patient ones, ones that abort, also before they arrive, ones that leave, stall, or have enough. Each checks
//! what it gets as it gets it, token for token.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_actors::ports::{NewRequest, RequestEvent, RequestStream, RouterPort};
use innkeeper_room::ledger::router::{AbortAnswer, OnFailure, Outcome};
use innkeeper_room::{Reason, Work};

use crate::answers::{VOCABULARY, expected};
use crate::cluster::{Cluster, Front};
use crate::net::{ROUTER, spawn};
use crate::seed::Rng;
use crate::story::{lock, note, tell, wrong};

/// What a client does besides waiting. Times are milliseconds after its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    Patient,
    AbortsBefore(u64),
    Aborts(u64),
    Leaves(u64),
    Stalls(u64),
    /// Has enough after so many tokens.
    Satisfied(usize),
}

/// What a client asks.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: u32,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) arrives: u64,
    pub(crate) habit: Habit,
}

impl Plan {
    /// From the seed, arriving at a time.
    pub(crate) fn new(number: u64, arrives: u64, patient: bool, rng: &mut Rng) -> Self {
        let long = rng.one_in(5);
        let length = if long {
            rng.between(200, 500)
        } else {
            rng.between(1, 160)
        };
        let mut prompt: Vec<u32> = (0..length).map(|_| rng.small(0, VOCABULARY - 1)).collect();
        if rng.one_in(2) {
            // It begins as others do, for up to seven pages.
            let alike = rng.between(16, 120) as usize;
            let same = (0..VOCABULARY).zip(&mut prompt).take(alike);
            same.for_each(|(at, id)| *id = at);
        }
        let max_tokens = if rng.one_in(6) { 1 } else { rng.small(2, 60) };
        let whole = expected(&prompt, max_tokens, &[]);
        let stop_ids = if rng.one_in(3) {
            rng.pick(&whole).into_iter().collect()
        } else {
            vec![]
        };
        let at = if rng.one_in(2) {
            rng.between(1, 200)
        } else {
            rng.between(100, 3000)
        };
        let habit = match rng.between(0, 11) {
            _ if patient => Habit::Patient,
            0 => Habit::AbortsBefore(at.min(arrives)),
            1 => Habit::Aborts(at),
            2 => Habit::Leaves(at),
            3 => Habit::Stalls(at),
            4 => Habit::Satisfied(rng.between(1, 20) as usize),
            _ => Habit::Patient,
        };
        Self {
            number,
            prompt,
            max_tokens,
            stop_ids,
            arrives,
            habit,
        }
    }

    fn rid(&self) -> String {
        format!("request {}", self.number)
    }

    fn request(&self) -> NewRequest {
        NewRequest {
            rid: self.rid(),
            client: "client".into(),
            model: None,
            work: Work {
                prompt: self.prompt.clone().into(),
                stop_ids: self.stop_ids.clone().into(),
                // Two tenants.
                tenant: u128::from(self.number % 2 + 1),
                ..Work::default()
            },
            blocks: innkeeper_room::prefix::Blocks::default(),
            max_tokens: self.max_tokens,
            class: innkeeper_room::Class::Normal,
            on_failure: OnFailure::Migrate,
        }
    }
}

/// How it went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) tokens: Vec<u32>,
    pub(crate) answer: Option<Outcome>,
    pub(crate) attempts: u8,
    /// The channel has ended.
    pub(crate) over: bool,
    /// Its router died, or there was none.
    pub(crate) cut_off: bool,
    /// It left.
    pub(crate) left: bool,
    /// The router said that it is aborted.
    aborted: bool,
    satisfied: bool,
    pub(crate) took: u64,
}

/// A client.
pub(crate) struct Client {
    pub(crate) plan: Plan,
    expected: Vec<u32>,
    pub(crate) seen: Mutex<Seen>,
}

impl Client {
    /// Starts one.
    pub(crate) fn start(cluster: &Arc<Cluster>, plan: Plan) -> Arc<Self> {
        let client = Arc::new(Self {
            expected: expected(&plan.prompt, plan.max_tokens, &plan.stop_ids),
            plan,
            seen: Mutex::default(),
        });
        let (running, cluster_) = (Arc::clone(&client), Arc::clone(cluster));
        spawn(
            &cluster.net.tasks,
            "client",
            async move { running.run(&cluster_).await },
        );
        client
    }

    /// Whether nothing more is to come.
    pub(crate) fn settled(&self) -> bool {
        let seen = lock(&self.seen);
        seen.left || seen.cut_off || (seen.answer.is_some() && seen.over)
    }

    async fn run(&self, cluster: &Arc<Cluster>) {
        let story = &cluster.story;
        let until = |at: u64| tokio::time::sleep(Duration::from_millis(at.saturating_sub(story.now())));
        let mut early = None;
        if let Habit::AbortsBefore(ms) = self.plan.habit {
            until(self.plan.arrives - ms).await;
            if let Some(front) = cluster.front() {
                let answer = front.node.abort(self.plan.rid(), "client".into()).await;
                tell!(story, "{} is aborted before it arrives: {answer:?}", self.plan.rid());
                early = (answer == Some(AbortAnswer::Accepted)).then_some(front);
            }
        }
        until(self.plan.arrives).await;
        let Some(front) = reach(cluster).await else {
            lock(&self.seen).cut_off = true;
            return;
        };
        if early.is_some_and(|early| Arc::ptr_eq(&early.node, &front.node)) {
            lock(&self.seen).aborted = true;
        }
        tell!(
            story,
            "{} arrives: {} tokens, at most {}, stops {:?}, {:?}",
            self.plan.rid(),
            self.plan.prompt.len(),
            self.plan.max_tokens,
            self.plan.stop_ids,
            self.plan.habit
        );
        let stream = front.node.submit(self.plan.request());
        cluster.net.tell_opened(ROUTER);
        self.listen(cluster, &front, stream).await;
        lock(&self.seen).took = story.now().saturating_sub(self.plan.arrives);
    }

    async fn listen(&self, cluster: &Arc<Cluster>, front: &Front, mut stream: RequestStream) {
        let mut acts = match self.plan.habit {
            Habit::Aborts(at) | Habit::Leaves(at) | Habit::Stalls(at) => Some(Duration::from_millis(at)),
            Habit::Patient | Habit::AbortsBefore(_) | Habit::Satisfied(_) => None,
        };
        let began = tokio::time::Instant::now();
        loop {
            let act = async {
                match acts {
                    Some(at) => tokio::time::sleep_until(began + at).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                biased;
                event = stream.events.recv() => event,
                () = act => {
                    acts = None;
                    if self.act(cluster, front, &stream).await { return }
                    continue;
                }
            };
            match event {
                Some(event) => self.hear(cluster, &stream, event),
                None => return self.closed(cluster, front),
            }
        }
    }

    /// Does what its habit is; whether it left.
    async fn act(&self, cluster: &Arc<Cluster>, front: &Front, stream: &RequestStream) -> bool {
        let story = &cluster.story;
        if lock(&self.seen).answer.is_some() {
            return false;
        }
        match self.plan.habit {
            Habit::Aborts(_) => {
                let answer = front.node.abort(self.plan.rid(), "client".into()).await;
                tell!(story, "{} is aborted: {answer:?}", self.plan.rid());
                lock(&self.seen).aborted = answer == Some(AbortAnswer::Aborted);
            }
            Habit::Leaves(_) => {
                tell!(story, "the client of {} leaves", self.plan.rid());
                lock(&self.seen).left = true;
                return true;
            }
            Habit::Stalls(_) => {
                tell!(story, "the client of {} stalls", self.plan.rid());
                stream.control.stalled();
            }
            Habit::Patient | Habit::AbortsBefore(_) | Habit::Satisfied(_) => {}
        }
        false
    }

    fn hear(&self, cluster: &Arc<Cluster>, stream: &RequestStream, event: RequestEvent) {
        let (story, rid) = (&cluster.story, self.plan.rid());
        let mut seen = lock(&self.seen);
        if let Some(answer) = &seen.answer {
            return wrong!(story, "I1: {rid} was answered {answer:?}, and then hears {event:?}");
        }
        match event {
            RequestEvent::Reused(_) => {}
            RequestEvent::Tokens(tokens) => {
                note!(story, "{rid} gets {} tokens", tokens.len());
                for token in tokens {
                    let at = seen.tokens.len();
                    if self.expected.get(at) != Some(&token.id) {
                        wrong!(
                            story,
                            "I10: token {at} of {rid} is {}, and not {:?}",
                            token.id,
                            self.expected.get(at)
                        );
                    }
                    seen.tokens.push(token.id);
                }
                if let Habit::Satisfied(enough) = self.plan.habit
                    && seen.tokens.len() >= enough
                    && !std::mem::replace(&mut seen.satisfied, true)
                {
                    stream.control.satisfied();
                }
            }
            RequestEvent::Answered { outcome, attempts, .. } => {
                tell!(
                    story,
                    "{rid} is answered after {} tokens, {} attempts: {outcome:?}",
                    seen.tokens.len(),
                    attempts.0
                );
                seen.attempts = attempts.0;
                seen.answer = Some(outcome);
                if let Err(why) = self.fits(&seen, &outcome) {
                    wrong!(story, "{rid} is answered {outcome:?}: {why}");
                }
            }
        }
    }

    /// Whether the answer goes with what happened.
    fn fits(&self, seen: &Seen, outcome: &Outcome) -> Result<(), String> {
        let gave_up = matches!(self.plan.habit, Habit::AbortsBefore(_) | Habit::Aborts(_));
        match outcome {
            Outcome::Done if seen.aborted => Err("I3: its abort was accepted".into()),
            Outcome::Done if seen.satisfied || seen.tokens == self.expected => Ok(()),
            Outcome::Done => Err(format!("I10: {} of {} tokens", seen.tokens.len(), self.expected.len())),
            Outcome::Failed { reason, .. } => match reason {
                Reason::Aborted if !gave_up => Err("I3: nobody aborted it".into()),
                Reason::Aborted => Ok(()),
                _ if seen.aborted => Err("I3: its abort was accepted".into()),
                Reason::ClientStalled if !matches!(self.plan.habit, Habit::Stalls(_)) => Err("it did not stall".into()),
                Reason::ProtocolError | Reason::UnknownRoom | Reason::KvCorrupt | Reason::TooLarge => {
                    Err("nobody here breaks the protocol, and checksums catch what the network breaks".into())
                }
                _ => Ok(()),
            },
        }
    }

    fn closed(&self, cluster: &Arc<Cluster>, front: &Front) {
        let mut seen = lock(&self.seen);
        seen.over = true;
        if seen.answer.is_none() {
            seen.cut_off = true;
            if !front.dead.is_cancelled() {
                wrong!(
                    cluster.story,
                    "I1: {} is never answered by a router that lives",
                    self.plan.rid()
                );
            }
        }
    }
}

/// Tries for a while to reach a router.
async fn reach(cluster: &Cluster) -> Option<Front> {
    for _ in 0..60 {
        if let Some(front) = cluster.front() {
            return Some(front);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}
