//! How fast the data plane moves KV, with and without TLS, compared with plain TCP sockets in the same run: on a shared machine
//! only the ratios say something.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use innkeeper_room::{
    Epoch, FirstToken, HelloReply, Incarnation, Manifest, RoomId, SlabError, SlabId, SlabMeta, SlabSink, SlabSource,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::coverage::Coverage;
use crate::port::{Acceptor, Backend, Dial, Grant, Hello, RecvEvent, RecvSession, SendEvent};
use crate::tcp::TcpBackend;
use crate::tls::Tls;
use crate::tls::throwaway::{NAME, Throwaway};

/// Bytes of one slab, as the engine coalesces them.
const SLAB: usize = 1 << 20;
/// Slabs of one room; larger runs are several rooms, so that the run fits into memory.
const SLABS: usize = 128;
/// Bytes per write of the plain sockets.
const RAW_WRITE: usize = 1 << 20;
/// Nothing here takes longer than this unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// What one way of moving the bytes cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// 10⁹ bytes per second.
    pub gb_per_second: f64,
    /// CPU seconds of the whole process (both ends) per 10⁹ bytes.
    pub cpu_seconds_per_gb: f64,
}

/// The comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Bytes moved each way.
    pub bytes: u64,
    /// Plain `std` TCP sockets: no frames, no checksums, straight into memory.
    pub raw: Measured,
    /// The data plane: from sealed slabs to a manifest that matches.
    pub data_plane: Measured,
    /// The same over mutual TLS.
    pub encrypted: Measured,
}

impl Report {
    /// The data plane's speed as a share of the plain sockets'.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.data_plane.gb_per_second / self.raw.gb_per_second
    }

    /// The speed over TLS as a share of that without.
    #[must_use]
    pub fn encrypted_ratio(&self) -> f64 {
        self.encrypted.gb_per_second / self.data_plane.gb_per_second
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |m: &Measured| format!("{:.2} GB/s, {:.3} CPU s/GB", m.gb_per_second, m.cpu_seconds_per_gb);
        writeln!(f, "raw TCP     {}", line(&self.raw))?;
        writeln!(f, "data plane  {}", line(&self.data_plane))?;
        writeln!(f, "with TLS    {}", line(&self.encrypted))?;
        write!(
            f,
            "ratio       {:.2}, of TLS to the data plane without it {:.2} ({} MiB each over loopback)",
            self.ratio(),
            self.encrypted_ratio(),
            self.bytes >> 20
        )
    }
}

/// Moves at least `bytes` over loopback in each way, in alternating rounds of 128 MiB, and compares. Blocks; call it outside
/// of an async runtime. Takes 256 MiB of memory.
///
/// # Errors
/// A socket failed, or the data plane did.
pub fn compare(bytes: u64) -> io::Result<Report> {
    let room = (SLAB * SLABS) as u64;
    let rounds = bytes.div_ceil(room).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let from = Arc::new(Pool::filled());
    let into = Arc::new(Pool::empty());
    // Touches every page and warms both ways up.
    let node = Throwaway::new(NAME).map_err(io::Error::other)?;
    let tls = Arc::new(node.tls(&node).map_err(io::Error::other)?);
    raw_round(&from, &into)?;
    runtime.block_on(plane_round(&from, &into, 1, None))?;
    runtime.block_on(plane_round(&from, &into, 1, Some(&tls)))?;
    let (mut raw, mut plane, mut encrypted) = (Cost::default(), Cost::default(), Cost::default());
    for round in 1..=rounds {
        raw.time(|| raw_round(&from, &into))?;
        plane.time(|| runtime.block_on(plane_round(&from, &into, round, None)))?;
        encrypted.time(|| runtime.block_on(plane_round(&from, &into, round, Some(&tls))))?;
    }
    let bytes = rounds * room;
    Ok(Report {
        bytes,
        raw: raw.per(bytes),
        data_plane: plane.per(bytes),
        encrypted: encrypted.per(bytes),
    })
}

#[derive(Default)]
struct Cost {
    wall: f64,
    cpu: f64,
}

impl Cost {
    fn time(&mut self, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        run()?;
        self.wall += wall.elapsed().as_secs_f64();
        self.cpu += cpu_seconds() - cpu;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "gigabytes as a float, for people")]
    fn per(&self, bytes: u64) -> Measured {
        let gigabytes = bytes as f64 / 1e9;
        Measured {
            gb_per_second: gigabytes / self.wall,
            cpu_seconds_per_gb: self.cpu / gigabytes,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds as a float, for people")]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A pool of slabs, one lock each, as an engine's pages are.
struct Pool {
    slabs: Vec<Mutex<Vec<u8>>>,
    sums: Vec<u32>,
}

impl Pool {
    fn filled() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let slab = |_| {
            let mut bytes = vec![0; SLAB];
            for chunk in bytes.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                chunk.copy_from_slice(&state.to_le_bytes());
            }
            bytes
        };
        let slabs: Vec<Vec<u8>> = (0..SLABS).map(slab).collect();
        let sums = slabs.iter().map(|bytes| crc32fast::hash(bytes)).collect();
        Self {
            slabs: slabs.into_iter().map(Mutex::new).collect(),
            sums,
        }
    }

    fn empty() -> Self {
        Self {
            slabs: (0..SLABS).map(|_| Mutex::new(vec![0; SLAB])).collect(),
            sums: Vec::new(),
        }
    }

    fn with<T>(&self, slab: SlabId, run: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T, SlabError> {
        let none = SlabError::OutOfRange {
            slab: slab.0,
            offset: 0,
            end: 0,
        };
        let slab = self.slabs.get(slab.0 as usize).ok_or(none)?;
        Ok(run(&mut slab.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl SlabSource for Pool {
    fn read(&self, slab: SlabId, offset: u32, out: &mut [u8]) -> Result<(), SlabError> {
        let end = offset as usize + out.len();
        let none = SlabError::OutOfRange {
            slab: slab.0,
            offset,
            end: end as u64,
        };
        self.with(slab, |bytes| {
            let from = bytes.get(offset as usize..end).ok_or(none)?;
            out.copy_from_slice(from);
            Ok(())
        })?
    }
}

impl SlabSink for Pool {
    fn slab_len(&self, slab: SlabId) -> Option<u32> {
        ((slab.0 as usize) < SLABS).then_some(u32::try_from(SLAB).unwrap_or(0))
    }

    fn write(&self, slab: SlabId, offset: u32, data: &[u8]) -> Result<(), SlabError> {
        let end = offset as usize + data.len();
        let none = SlabError::OutOfRange {
            slab: slab.0,
            offset,
            end: end as u64,
        };
        self.with(slab, |bytes| {
            let into = bytes.get_mut(offset as usize..end).ok_or(none)?;
            into.copy_from_slice(data);
            Ok(())
        })?
    }

    fn checksum(&self, slab: SlabId) -> Result<u32, SlabError> {
        self.with(slab, |bytes| crc32fast::hash(bytes))
    }
}

/// One room's bytes over plain sockets, one thread at each end.
fn raw_round(from: &Arc<Pool>, into: &Arc<Pool>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let source = Arc::clone(from);
    let sending = std::thread::spawn(move || -> io::Result<()> {
        for slab in &source.slabs {
            let bytes = slab.lock().unwrap_or_else(PoisonError::into_inner);
            for part in bytes.chunks(RAW_WRITE) {
                sender.write_all(part)?;
            }
        }
        Ok(())
    });
    for slab in &into.slabs {
        receiver.read_exact(&mut slab.lock().unwrap_or_else(PoisonError::into_inner))?;
    }
    sending
        .join()
        .map_err(|_| io::Error::other("the sending thread died"))?
}

/// D of the bench: grants everything and hands its events out.
struct Host {
    grant: Grant,
    sessions: mpsc::Sender<(Arc<dyn RecvSession>, mpsc::Receiver<RecvEvent>)>,
}

impl Acceptor for Host {
    fn hello(&self, _: Hello, session: Arc<dyn RecvSession>, events: mpsc::Receiver<RecvEvent>) {
        session.reply(HelloReply::Ready, Some(self.grant.clone()));
        // Fails only if the round is over.
        let _ = self.sessions.try_send((session, events));
    }
}

/// One room over the data plane: from the hello to the commit.
async fn plane_round(from: &Arc<Pool>, into: &Arc<Pool>, round: u64, tls: Option<&Arc<Tls>>) -> io::Result<()> {
    let moving = async {
        let lens = vec![u32::try_from(SLAB).unwrap_or(0); SLABS];
        let sink: Arc<dyn SlabSink> = Arc::<Pool>::clone(into);
        let grant = Grant {
            sink,
            coverage: Arc::new(Coverage::new(lens)),
        };
        let (sessions, mut hosted) = mpsc::channel(1);
        let backend = TcpBackend::new(Config::default()).with_tls(tls.cloned());
        let door = backend
            .listen("127.0.0.1:0", Arc::new(Host { grant, sessions }))
            .await
            .map_err(io::Error::other)?;
        let dial = Dial {
            addr: door.local_addr().to_string(),
            room: RoomId::from_random(round),
            epoch: Epoch(1),
            token: 0,
            prefill: Incarnation::new(1),
            decode: Incarnation::new(2),
        };
        let (session, mut sent) = backend.dial(dial, Arc::<Pool>::clone(from));
        let mut manifest = Manifest {
            slabs: Vec::new(),
            token_count: 1,
            first_token: FirstToken::default(),
            ticket: None,
        };
        for (at, checksum) in (0..).zip(&from.sums) {
            let slab = SlabMeta {
                id: SlabId(at),
                len: u32::try_from(SLAB).unwrap_or(0),
                checksum: *checksum,
            };
            session.submit(slab);
            manifest.slabs.push(slab);
        }
        session.manifest(manifest);
        let (host, mut events) = hosted.recv().await.ok_or_else(|| io::Error::other("no hello came"))?;
        while let Some(event) = events.recv().await {
            match event {
                RecvEvent::Complete(_) => host.committed(),
                RecvEvent::Quiesced => break,
                RecvEvent::Corrupt(why) | RecvEvent::Broken { why } => return Err(io::Error::other(why)),
                RecvEvent::Started | RecvEvent::Verified(_) | RecvEvent::PeerProgress(_) | RecvEvent::LeaseAge(_) => {}
                RecvEvent::PeerFailed(reason, _) => return Err(io::Error::other(reason.explanation())),
            }
        }
        let mut committed = false;
        while let Some(event) = sent.recv().await {
            committed |= event == SendEvent::Committed;
        }
        if committed {
            Ok(())
        } else {
            Err(io::Error::other("the commit did not arrive"))
        }
    };
    // Nothing hangs unless something is broken.
    tokio::time::timeout(LIMIT, moving).await.map_err(io::Error::other)?
}
