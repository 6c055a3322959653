//! Both ends of the conformance suite: pages, a host, and the two backends behind one door.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_room::{
    Epoch, FirstToken, HelloReply, Incarnation, Manifest, RoomId, SlabError, SlabId, SlabMeta, SlabSink, SlabSource,
};
use innkeeper_transfer::fault::{FaultProxy, Faults};
use innkeeper_transfer::mem::MemNetwork;
use innkeeper_transfer::tls::throwaway::{NAME, Throwaway};
use innkeeper_transfer::{
    Acceptor, Backend, Config, Coverage, Dial, Grant, Hello, Listener, MemBackend, RecvEvent, RecvSession, SendEvent,
    SendSession, TcpBackend, Tls,
};
use tokio::sync::mpsc;

/// Nothing in these tests takes this long on a healthy machine, however busy.
pub const LIMIT: Duration = Duration::from_secs(20);
pub const TOKEN: u64 = 0xfeed;

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"))
}

/// Waits until a condition holds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// The backend under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mem,
    Tcp,
    /// TCP with mutual TLS.
    Tls,
}

pub const ALL: [Kind; 3] = [Kind::Mem, Kind::Tcp, Kind::Tls];

/// TLS of a node that trusts itself.
pub fn node_tls() -> Arc<Tls> {
    let node = Throwaway::new(NAME).unwrap();
    Arc::new(node.tls(&node).unwrap())
}

/// Short times, so that what is waited for comes soon.
pub fn config() -> Config {
    Config {
        connect_timeout: Duration::from_secs(2),
        hello_timeout: Duration::from_secs(5),
        grace: Duration::from_millis(300),
        ..Config::default()
    }
}

/// Sealed slabs on P's side; `lie` makes the bytes other ones than were sealed.
pub struct Source {
    pub slabs: Vec<Vec<u8>>,
    pub metas: Vec<SlabMeta>,
    pub lie: AtomicBool,
    pub closed: AtomicBool,
    pub reads: AtomicU64,
}

impl Source {
    pub fn new(lens: &[u32]) -> Arc<Self> {
        let mut state = 88_172_645_463_325_252_u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let slabs: Vec<Vec<u8>> = lens.iter().map(|len| (0..*len).map(|_| byte()).collect()).collect();
        let metas = slabs
            .iter()
            .zip(0..)
            .map(|(bytes, id)| SlabMeta {
                id: SlabId(id),
                len: u32::try_from(bytes.len()).unwrap(),
                checksum: crc32fast::hash(bytes),
            })
            .collect();
        Arc::new(Self {
            slabs,
            metas,
            lie: AtomicBool::default(),
            closed: AtomicBool::default(),
            reads: AtomicU64::default(),
        })
    }

    pub fn manifest(&self) -> Manifest {
        let first_token = FirstToken {
            id: 5,
            logprob_bits: 9,
            top: vec![(5, 9), (6, 8)],
        };
        Manifest {
            slabs: self.metas.clone(),
            token_count: 33,
            first_token,
            ticket: None,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.len() as u64).sum()
    }
}

impl SlabSource for Source {
    fn read(&self, slab: SlabId, offset: u32, out: &mut [u8]) -> Result<(), SlabError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(SlabError::Closed);
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        let from = offset as usize;
        out.copy_from_slice(&self.slabs[slab.0 as usize][from..from + out.len()]);
        // One byte of the page, wherever the reads begin.
        if from == 0 && self.lie.load(Ordering::SeqCst) {
            out[0] ^= 1;
        }
        Ok(())
    }
}

/// D's pages. After `closed` a write is remembered as foreign: the fence leaked.
#[derive(Default)]
pub struct Pages {
    slabs: Mutex<BTreeMap<u32, Vec<u8>>>,
    pub closed: AtomicBool,
    pub foreign: AtomicU64,
    pub writes: AtomicU64,
}

impl Pages {
    pub fn new(lens: &[u32]) -> Arc<Self> {
        let pages = Self::default();
        *pages.slabs.lock().unwrap() = (0..).zip(lens).map(|(id, len)| (id, vec![0; *len as usize])).collect();
        Arc::new(pages)
    }

    pub fn equal(&self, source: &Source) -> bool {
        self.slabs.lock().unwrap().values().eq(source.slabs.iter())
    }
}

impl SlabSink for Pages {
    fn slab_len(&self, slab: SlabId) -> Option<u32> {
        self.slabs
            .lock()
            .unwrap()
            .get(&slab.0)
            .map(|bytes| u32::try_from(bytes.len()).unwrap())
    }

    fn write(&self, slab: SlabId, offset: u32, data: &[u8]) -> Result<(), SlabError> {
        if self.closed.load(Ordering::SeqCst) {
            self.foreign.fetch_add(1, Ordering::SeqCst);
            return Err(SlabError::Closed);
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        let from = offset as usize;
        self.slabs.lock().unwrap().get_mut(&slab.0).unwrap()[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn checksum(&self, slab: SlabId) -> Result<u32, SlabError> {
        Ok(crc32fast::hash(&self.slabs.lock().unwrap()[&slab.0]))
    }
}

/// A session that D got.
pub struct Hosted {
    pub hello: Hello,
    pub session: Arc<dyn RecvSession>,
    pub events: mpsc::Receiver<RecvEvent>,
}

impl Hosted {
    pub async fn next(&mut self) -> RecvEvent {
        within("D's next event", self.events.recv())
            .await
            .expect("an event before the end")
    }

    /// The next event that is no counter.
    pub async fn edge(&mut self) -> RecvEvent {
        loop {
            match self.next().await {
                RecvEvent::Verified(_) | RecvEvent::PeerProgress(_) => {}
                edge => return edge,
            }
        }
    }

    /// All events up to and with Quiesced; the channel ends there.
    pub async fn rest(&mut self) -> Vec<RecvEvent> {
        let mut all = Vec::new();
        while let Some(event) = within("D's end", self.events.recv()).await {
            all.push(event);
        }
        assert_eq!(all.last(), Some(&RecvEvent::Quiesced));
        all
    }
}

struct Host {
    sessions: mpsc::UnboundedSender<Hosted>,
}

impl Acceptor for Host {
    fn hello(&self, hello: Hello, session: Arc<dyn RecvSession>, events: mpsc::Receiver<RecvEvent>) {
        let _ = self.sessions.send(Hosted { hello, session, events });
    }
}

/// A session that P dialed.
pub struct Dialed {
    pub session: Arc<dyn SendSession>,
    pub events: mpsc::Receiver<SendEvent>,
}

impl Dialed {
    pub async fn next(&mut self) -> SendEvent {
        within("P's next event", self.events.recv())
            .await
            .expect("an event before the end")
    }

    pub async fn edge(&mut self) -> SendEvent {
        loop {
            match self.next().await {
                SendEvent::Verified(_) | SendEvent::Sent(_) => {}
                edge => return edge,
            }
        }
    }

    pub async fn rest(&mut self) -> Vec<SendEvent> {
        let mut all = Vec::new();
        while let Some(event) = within("P's end", self.events.recv()).await {
            all.push(event);
        }
        assert_eq!(all.last(), Some(&SendEvent::Quiesced));
        all
    }

    pub fn send_all(&self, source: &Source) {
        self.session.started();
        for meta in &source.metas {
            self.session.submit(*meta);
        }
        self.session.manifest(source.manifest());
    }
}

/// P and D over one backend each, with a network between them that can misbehave.
pub struct World {
    pub p: Arc<dyn Backend>,
    pub d: Arc<dyn Backend>,
    pub faults: Faults,
    pub addr: String,
    pub direct: String,
    pub listener: Box<dyn Listener>,
    hosted: mpsc::UnboundedReceiver<Hosted>,
    _proxy: Option<FaultProxy>,
}

impl World {
    pub async fn new(kind: Kind) -> Self {
        Self::with(kind, config(), config()).await
    }

    pub async fn with(kind: Kind, p_config: Config, d_config: Config) -> Self {
        let tls = (kind == Kind::Tls).then(node_tls);
        Self::over(kind, p_config, d_config, [tls.clone(), tls]).await
    }

    /// With the TLS of P, which is also that of the network between, and that of D.
    pub async fn over(kind: Kind, p_config: Config, d_config: Config, tls: [Option<Arc<Tls>>; 2]) -> Self {
        let (sessions, hosted) = mpsc::unbounded_channel();
        let host = Arc::new(Host { sessions });
        let [p_tls, d_tls] = tls;
        let (p, d, faults): (Arc<dyn Backend>, Arc<dyn Backend>, Faults) = match kind {
            Kind::Mem => {
                let network = MemNetwork::default();
                let p = MemBackend::new(p_config, network.clone());
                let faults = p.faults();
                (Arc::new(p), Arc::new(MemBackend::new(d_config, network)), faults)
            }
            Kind::Tcp | Kind::Tls => (
                Arc::new(TcpBackend::new(p_config).with_tls(p_tls.clone())),
                Arc::new(TcpBackend::new(d_config).with_tls(d_tls)),
                Faults::default(),
            ),
        };
        let listener = d.listen("127.0.0.1:0", host).await.unwrap();
        let direct = listener.local_addr().to_string();
        let proxy = match kind {
            Kind::Mem => None,
            Kind::Tcp | Kind::Tls => {
                let proxy = FaultProxy::start_with(listener.local_addr(), faults.clone(), p_tls);
                Some(proxy.await.unwrap())
            }
        };
        let addr = proxy
            .as_ref()
            .map_or(direct.clone(), |proxy| proxy.local_addr().to_string());
        Self {
            p,
            d,
            faults,
            addr,
            direct,
            listener,
            hosted,
            _proxy: proxy,
        }
    }

    pub fn dial_at(&self, addr: &str, room: u64, epoch: u32, source: &Arc<Source>) -> Dialed {
        let dial = Dial {
            addr: addr.to_owned(),
            room: RoomId::from_random(room),
            epoch: Epoch(epoch),
            token: TOKEN,
            prefill: Incarnation::new(1),
            decode: Incarnation::new(2),
        };
        let source: Arc<dyn SlabSource> = Arc::<Source>::clone(source);
        let (session, events) = self.p.dial(dial, source);
        Dialed { session, events }
    }

    pub fn dial(&self, epoch: u32, source: &Arc<Source>) -> Dialed {
        self.dial_at(&self.addr, 7, epoch, source)
    }

    /// Whether nobody's hello came through.
    pub fn no_hello(&mut self) -> bool {
        self.hosted.try_recv().is_err()
    }

    pub async fn host(&mut self) -> Hosted {
        within("a hello", self.hosted.recv()).await.unwrap()
    }
}

pub fn grant(pages: &Arc<Pages>, coverage: &Arc<Coverage>) -> Grant {
    let sink: Arc<dyn SlabSink> = Arc::<Pages>::clone(pages);
    Grant {
        sink,
        coverage: Arc::clone(coverage),
    }
}

/// A room with its pages on both sides.
pub struct Room {
    pub source: Arc<Source>,
    pub pages: Arc<Pages>,
    pub coverage: Arc<Coverage>,
}

impl Room {
    pub fn new(lens: &[u32]) -> Self {
        Self {
            source: Source::new(lens),
            pages: Pages::new(lens),
            coverage: Arc::new(Coverage::new(lens.to_vec())),
        }
    }

    pub fn ready(&self, hosted: &Hosted) {
        hosted
            .session
            .reply(HelloReply::Ready, Some(grant(&self.pages, &self.coverage)));
    }

    /// Runs an epoch to the commit and checks everything.
    pub async fn finish(&self, world: &mut World, epoch: u32) {
        let mut p = world.dial(epoch, &self.source);
        let mut d = world.host().await;
        self.ready(&d);
        p.send_all(&self.source);
        assert_eq!(d.edge().await, RecvEvent::Started);
        assert_eq!(d.edge().await, RecvEvent::Complete(self.source.manifest()));
        assert!(self.pages.equal(&self.source));
        d.session.committed();
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert_eq!(p.edge().await, SendEvent::Committed);
        assert_eq!(p.edge().await, SendEvent::Quiesced);
        assert_eq!(d.edge().await, RecvEvent::Quiesced);
        assert_eq!(self.coverage.verified_bytes(), self.source.bytes());
    }
}
