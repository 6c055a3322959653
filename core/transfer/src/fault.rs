//! A network that misbehaves on purpose, frame by frame: between the ends of the `mem` backend, or as a proxy before TCP.
//! Only tests use it; the sessions at its ends are the production ones.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::frame::{HEADER, Header, Kind};
use crate::tls::Tls;

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// From P to D.
    Decode,
    /// From D to P.
    Prefill,
}

/// What happens to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is lost.
    Drop,
    /// It, and all behind it, come later.
    Delay(Duration),
    /// It, and all behind it, never come; the connection stays.
    Stall,
    /// It comes twice.
    Duplicate,
    /// This byte of it (counted from its first, modulo its length) is flipped.
    Corrupt(usize),
    /// It comes after the frame behind it.
    Swap,
}

/// Which frames a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The nth frame of the direction, from 0.
    Nth(u64),
    /// Every frame of a kind.
    Every(Kind),
}

/// A fault and where it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The direction.
    pub toward: Toward,
    /// The frames.
    pub which: Which,
    /// The fault.
    pub fault: Fault,
}

/// Which ends see that a connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenBy {
    /// Both.
    Both,
    /// P only; D's connection stays open and silent.
    Prefill,
    /// D only; P's connection stays open and silent.
    Decode,
}

/// What happens to one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// It is refused.
    pub refuse: bool,
    /// Faults of frames.
    pub rules: Vec<Rule>,
    /// It is cut after this many bytes towards D.
    pub cut: Option<(u64, SeenBy)>,
}

impl Script {
    /// A script with one rule.
    #[must_use]
    pub fn rule(toward: Toward, which: Which, fault: Fault) -> Self {
        Self {
            rules: vec![Rule { toward, which, fault }],
            ..Self::default()
        }
    }

    /// A script that cuts the connection after this many bytes towards D.
    #[must_use]
    pub fn cut(after: u64, seen_by: SeenBy) -> Self {
        Self {
            cut: Some((after, seen_by)),
            ..Self::default()
        }
    }
}

/// Scripts for the connections to come, and a valve for all of them.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    scripts: Arc<Mutex<VecDeque<Script>>>,
    valve: Arc<Valve>,
}

/// Shut or open. Whoever waits is let through in the order of coming, so that a run can be repeated.
#[derive(Debug, Default)]
struct Valve {
    shut: AtomicBool,
    turned: Notify,
}

impl Valve {
    /// Comes when it is open.
    async fn open(&self) {
        loop {
            let mut turned = pin!(self.turned.notified());
            // Before the look, so that no turn is missed after it.
            turned.as_mut().enable();
            if !self.shut.load(Ordering::Acquire) {
                return;
            }
            turned.await;
        }
    }
}

impl Faults {
    /// The next connection without a script follows this one; connections beyond the scripts are faultless.
    pub fn push(&self, script: Script) {
        self.scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(script);
    }

    /// While shut nothing passes in either direction, on any connection.
    pub fn shut(&self, shut: bool) {
        self.valve.shut.store(shut, Ordering::Release);
        self.valve.turned.notify_waiters();
    }

    pub(crate) fn next(&self) -> Script {
        self.scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
            .unwrap_or_default()
    }
}

/// One end of a relayed connection: what comes from it and what goes to it.
pub(crate) type End<R, W> = (R, W);

/// Passes frames between the ends until both are closed, or the script cuts.
pub(crate) async fn relay<R, W>(prefill: End<R, W>, decode: End<R, W>, script: Script, faults: Faults)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut from_p, mut to_p) = prefill;
    let (mut from_d, mut to_d) = decode;
    let cut = {
        let onward = Pump::new(Toward::Decode, &script, &faults).run(&mut from_p, &mut to_d);
        let back = Pump::new(Toward::Prefill, &script, &faults).run(&mut from_d, &mut to_p);
        let mut onward = std::pin::pin!(onward);
        let mut back = std::pin::pin!(back);
        let (mut onward_over, mut back_over) = (false, false);
        loop {
            // Back first: it is the lesser stream, and is never starved by the greater.
            tokio::select! {
                biased;
                _ = &mut back, if !back_over => back_over = true,
                cut = &mut onward, if !onward_over => match cut {
                    Some(cut) => break cut,
                    None => onward_over = true,
                },
            }
            if onward_over && back_over {
                return;
            }
        }
    };
    // One end stays open, and hears nothing, until it closes by itself.
    match cut {
        SeenBy::Both => {}
        SeenBy::Prefill => {
            drop((from_p, to_p));
            swallow(&mut from_d).await;
        }
        SeenBy::Decode => {
            drop((from_d, to_d));
            swallow(&mut from_p).await;
        }
    }
}

async fn swallow(from: &mut (impl AsyncRead + Unpin)) {
    let mut scrap = vec![0; 4096];
    while let Ok(got) = from.read(&mut scrap).await {
        if got == 0 {
            return;
        }
    }
}

/// One direction of a relayed connection.
struct Pump<'a> {
    toward: Toward,
    script: &'a Script,
    valve: Arc<Valve>,
    frames: u64,
    passed: u64,
    held: Option<Vec<u8>>,
}

/// What to do after a frame.
enum Then {
    Go,
    Over,
    Cut(SeenBy),
}

impl<'a> Pump<'a> {
    fn new(toward: Toward, script: &'a Script, faults: &Faults) -> Self {
        Self {
            toward,
            script,
            valve: Arc::clone(&faults.valve),
            frames: 0,
            passed: 0,
            held: None,
        }
    }

    /// Passes frames until the source ends; the cut, if the script had one.
    async fn run<R, W>(mut self, from: &mut R, to: &mut W) -> Option<SeenBy>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while let Some(frame) = next_frame(from).await {
            match self.frame(frame, to).await {
                Then::Go => {}
                Then::Over => break,
                Then::Cut(seen_by) => return Some(seen_by),
            }
        }
        if let Some(held) = self.held.take() {
            let _ = to.write_all(&held).await;
        }
        // Passes a half-close on; behind a shut valve it waits as bytes do.
        self.valve.open().await;
        let _ = to.shutdown().await;
        None
    }

    async fn frame<W: AsyncWrite + Unpin>(&mut self, mut frame: Vec<u8>, to: &mut W) -> Then {
        let mut twice = false;
        let kind = frame
            .first_chunk::<HEADER>()
            .and_then(|head| Header::decode(head).ok())
            .map(|header| header.kind);
        let nth = self.frames;
        self.frames += 1;
        let hits = |which| match which {
            Which::Nth(wanted) => wanted == nth,
            Which::Every(wanted) => Some(wanted) == kind,
        };
        for rule in self
            .script
            .rules
            .iter()
            .filter(|rule| rule.toward == self.toward && hits(rule.which))
        {
            match rule.fault {
                Fault::Drop => return Then::Go,
                Fault::Delay(time) => tokio::time::sleep(time).await,
                Fault::Stall => std::future::pending().await,
                Fault::Duplicate => twice = true,
                Fault::Corrupt(at) => {
                    let at = at % frame.len().max(1);
                    if let Some(byte) = frame.get_mut(at) {
                        *byte ^= 0x10;
                    }
                }
                Fault::Swap => {
                    self.held = Some(frame);
                    return Then::Go;
                }
            }
        }
        let held = self.held.take();
        for bytes in [Some(&frame), twice.then_some(&frame), held.as_ref()]
            .into_iter()
            .flatten()
        {
            match self.pass(bytes, to).await {
                Then::Go => {}
                other => return other,
            }
        }
        Then::Go
    }

    async fn pass<W: AsyncWrite + Unpin>(&mut self, bytes: &[u8], to: &mut W) -> Then {
        self.valve.open().await;
        let cut = self.script.cut.filter(|_| self.toward == Toward::Decode);
        let left = cut.map_or(u64::MAX, |(after, _)| after - self.passed.min(after));
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        if to.write_all(bytes.get(..part).unwrap_or(bytes)).await.is_err() || to.flush().await.is_err() {
            return Then::Over;
        }
        self.passed += part as u64;
        match cut {
            Some((after, seen_by)) if self.passed >= after => Then::Cut(seen_by),
            Some(_) | None => Then::Go,
        }
    }
}

/// Reads a whole frame; bytes that are none are passed on as they are.
async fn next_frame(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut head = [0; HEADER];
    let mut got = 0;
    while got < HEADER {
        match from.read(head.get_mut(got..).unwrap_or(&mut [])).await {
            Ok(more) if more > 0 => got += more,
            Ok(_) | Err(_) if got > 0 => return head.get(..got).map(<[u8]>::to_vec),
            Ok(_) | Err(_) => return None,
        }
    }
    let mut frame = head.to_vec();
    if let Ok(header) = Header::decode(&head) {
        frame.resize(HEADER + header.length as usize, 0);
        from.read_exact(frame.get_mut(HEADER..).unwrap_or(&mut [])).await.ok()?;
    }
    Some(frame)
}

/// A TCP proxy that misbehaves. Dropping it closes everything.
#[derive(Debug)]
pub struct FaultProxy {
    local: SocketAddr,
    stop: CancellationToken,
}

impl FaultProxy {
    /// Listens on a free loopback port and passes connections on to `target`.
    ///
    /// # Errors
    /// No port can be bound.
    pub async fn start(target: SocketAddr, faults: Faults) -> std::io::Result<Self> {
        Self::start_with(target, faults, None).await
    }

    /// The same between ends that speak TLS: it does so with both of them, as a node, and its faults are still those of frames.
    ///
    /// # Errors
    /// No port can be bound.
    pub async fn start_with(target: SocketAddr, faults: Faults, tls: Option<Arc<Tls>>) -> std::io::Result<Self> {
        let socket = TcpListener::bind(("127.0.0.1", 0)).await?;
        let local = socket.local_addr()?;
        let stop = CancellationToken::new();
        let over = stop.clone();
        let tasks = TaskTracker::new();
        tokio::spawn(async move {
            let passing = async {
                while let Ok((prefill, _)) = socket.accept().await {
                    tasks.spawn(over.clone().run_until_cancelled_owned(pass_on(
                        prefill,
                        target,
                        faults.clone(),
                        tls.clone(),
                    )));
                }
            };
            over.run_until_cancelled(passing).await;
        });
        Ok(Self { local, stop })
    }

    /// Where to connect instead of the target.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn pass_on(prefill: TcpStream, target: SocketAddr, faults: Faults, tls: Option<Arc<Tls>>) {
    let script = faults.next();
    if script.refuse {
        return;
    }
    let Ok(decode) = TcpStream::connect(target).await else {
        return;
    };
    let Some(tls) = tls else {
        relay(prefill.into_split(), decode.into_split(), script, faults).await;
        return;
    };
    let ends = tokio::try_join!(tls.accept(prefill), tls.connect(decode));
    if let Ok((prefill, decode)) = ends {
        relay(split(prefill), split(decode), script, faults).await;
    }
}
