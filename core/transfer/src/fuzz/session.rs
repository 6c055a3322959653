//! D's whole side of a connection, from its first byte: hello, frames, manifest, last words.
//!
//! The script plays P, honest or not, and D's owner, who grants pages of a small pool and takes them back. The pool is
//! one stretch of bytes with other rooms' bytes between this room's slabs, and writes to it are not checked: what keeps
//! them inside is the code that is under test.

mod owner;
mod peer;
mod pool;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, WriteHalf};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::owner::Owner;
use self::peer::Peer;
use self::pool::Pool;
use super::Input;
use crate::accept::Door;
use crate::config::Config;
use crate::coverage::Coverage;
use crate::frame::{Kind, decode_frame};
use crate::link::Link;
use crate::stats::{Open, Side, Stats};

/// Nothing takes as long, in a time that only passes while nobody has anything to do.
const LIMIT: Duration = Duration::from_secs(600);
/// Connections of one script: the epochs of a room.
const CONNECTIONS: u32 = 4;

/// Plays a script.
pub fn run(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be made");
    runtime.block_on(play(Input::new(data)));
}

async fn play(mut input: Input<'_>) {
    let lens: Vec<u32> = (0..=input.u8() % 5).map(|_| slab_len(input.u8())).collect();
    let pool = Arc::new(Pool::new(&lens));
    let coverage = Arc::new(Coverage::new(lens.clone()));
    for epoch in 1..=CONNECTIONS {
        let mut connection = Connection::open();
        let mut owner = Owner::new(Arc::clone(&pool), Arc::clone(&coverage));
        let mut peer = Peer::new(lens.clone(), epoch);
        while !input.is_empty() {
            match input.u8() % 20 {
                0 => break,
                1 => tokio::time::sleep(Duration::from_millis(1 + u64::from(input.u8()))).await,
                2..=4 => owner.act(&mut input),
                choice => {
                    let bytes = peer.act(choice, &mut input);
                    connection.write(&bytes, &pool, &peer, input.u8()).await;
                    owner.look(&connection.hosted);
                }
            }
        }
        connection.end(&mut owner).await;
        pool.ends_session();
        owner.judge(&lens);
        assert!(coverage.verified_bytes() <= coverage.total_bytes());
        if input.is_empty() {
            break;
        }
    }
    pool.check();
}

/// Mostly short; some as long as more than one frame.
fn slab_len(choice: u8) -> u32 {
    match choice {
        254 => 70_000,
        255 => 300_000,
        short => u32::from(short),
    }
}

/// One data connection, and all that D's side makes of it.
struct Connection {
    write: WriteHalf<DuplexStream>,
    /// What D said.
    said: JoinHandle<Vec<u8>>,
    serving: JoinHandle<()>,
    hosted: owner::Hosted,
    stats: Arc<Stats>,
    /// All that was written, and how much of it was looked at as frames.
    sent: Vec<u8>,
    seen: usize,
}

impl Connection {
    fn open() -> Self {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (mut read, write) = tokio::io::split(near);
        let said = tokio::spawn(async move {
            let mut said = Vec::new();
            // A pipe in memory has no errors; its end is the end.
            let _ = read.read_to_end(&mut said).await;
            said
        });
        let stats = Arc::<Stats>::default();
        let hosted = owner::Hosted::default();
        let door = Door::new(
            Arc::new(hosted.clone()),
            Arc::new(Config::default()),
            Arc::clone(&stats),
            CancellationToken::new(),
        );
        let (read, far) = tokio::io::split(far);
        let link = Link {
            read: Box::new(read),
            write: Box::new(far),
            socket: Weak::new(),
            open: Open::new(Arc::clone(&stats), Side::In),
        };
        Self {
            write,
            said,
            serving: tokio::spawn(door.serve(
                std::future::ready(Ok::<_, std::convert::Infallible>(link)),
                "fuzz".to_owned(),
            )),
            hosted,
            stats,
            sent: Vec::new(),
            seen: 0,
        }
    }

    /// Writes bytes in two pieces and lets D look at each; what of them is a frame of this session D may write.
    async fn write(&mut self, bytes: &[u8], pool: &Pool, peer: &Peer, cut: u8) {
        self.sent.extend_from_slice(bytes);
        while let Some(rest) = self.sent.get(self.seen..)
            && let Ok((header, payload, left)) = decode_frame(rest)
        {
            self.seen = self.sent.len() - left.len();
            if header.kind == Kind::Slab && (header.room, header.epoch) == peer.ids() {
                pool.allow(header.slab, header.offset, payload);
            }
        }
        let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
        for piece in [head, tail] {
            // D may have closed: that is its right. If it takes nothing it has to close within its own limits.
            let written = tokio::time::timeout(LIMIT, self.write.write_all(piece)).await;
            assert!(written.is_ok(), "D neither reads nor closes");
            if cut.is_multiple_of(2) {
                settle().await;
            }
        }
    }

    /// P goes; everything of D's has to end by itself.
    async fn end(mut self, owner: &mut Owner) {
        let _ = self.write.shutdown().await;
        settle().await;
        owner.look(&self.hosted);
        let Self { serving, said, .. } = self;
        let ended = tokio::time::timeout(LIMIT, serving).await;
        assert!(matches!(ended, Ok(Ok(()))), "the session does not end: {ended:?}");
        drop(self.write);
        owner.look(&self.hosted);
        assert_eq!(
            Stats::get(&self.stats.connections_in),
            0,
            "a connection is still counted"
        );
        let said = said.await.expect("reading a pipe does not fail");
        owner.heard(&said);
    }
}

/// Lets everybody do what there is to do.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Scripts to begin with, by name.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    peer::seeds()
}
