use crate::cache::BlockHash;
use crate::evidence::Evidence;
use crate::ids::{Epoch, RoomId};
use crate::ledger::{decode, prefill};
use crate::message::FromWorker;
use crate::reason::Reason;

/// The orders that both worker ledgers give.
pub(crate) trait Orders: Sized {
    fn tell(room: RoomId, message: FromWorker) -> Self;
    fn begin(room: RoomId) -> Self;
    fn say_fail(room: RoomId, epoch: Epoch, reason: Reason, evidence: Evidence) -> Self;
    /// Ends a data connection on which nothing is left to say.
    fn finish_session(room: RoomId, epoch: Epoch) -> Self;
    fn kill_session(room: RoomId, epoch: Epoch) -> Self;
    fn cancel_engine(room: RoomId) -> Self;
    /// The pages that are kept, by their place in the prompt, stay as pages of the prefix cache.
    fn close_pages(room: RoomId, keep: Vec<(u32, BlockHash)>) -> Self;
    /// Pages of the prefix cache are free; there is no such order at D.
    fn evict(blocks: Vec<BlockHash>) -> Option<Self>;
    fn end(room: RoomId) -> Self;
    fn serving(serving: bool) -> Self;
    fn exit(why: &'static str) -> Self;
}

macro_rules! orders {
    ($effect:ty, $finish:ident, $($cache:item),+) => {
        impl Orders for $effect {
            fn tell(room: RoomId, message: FromWorker) -> Self {
                Self::Tell { room, message }
            }
            fn begin(room: RoomId) -> Self {
                Self::Begin { room }
            }
            fn say_fail(room: RoomId, epoch: Epoch, reason: Reason, evidence: Evidence) -> Self {
                Self::SayFail {
                    room,
                    epoch,
                    reason,
                    evidence,
                }
            }
            fn finish_session(room: RoomId, epoch: Epoch) -> Self {
                Self::$finish { room, epoch }
            }
            fn kill_session(room: RoomId, epoch: Epoch) -> Self {
                Self::KillSession { room, epoch }
            }
            fn cancel_engine(room: RoomId) -> Self {
                Self::CancelEngine { room }
            }
            $($cache)+
            fn end(room: RoomId) -> Self {
                Self::End { room }
            }
            fn serving(serving: bool) -> Self {
                Self::Serving(serving)
            }
            fn exit(why: &'static str) -> Self {
                Self::Exit { why }
            }
        }
    };
}

orders!(
    prefill::Effect,
    FinishSession,
    fn close_pages(room: RoomId, keep: Vec<(u32, BlockHash)>) -> Self {
        Self::ClosePages { room, keep }
    },
    fn evict(blocks: Vec<BlockHash>) -> Option<Self> {
        (!blocks.is_empty()).then_some(Self::Evict { blocks })
    }
);
// D never ends a session quietly: it is the side that reads, and a peer that said its last word reads nothing any more.
orders!(
    decode::Effect,
    KillSession,
    fn close_pages(room: RoomId, _keep: Vec<(u32, BlockHash)>) -> Self {
        Self::ClosePages { room }
    },
    fn evict(_blocks: Vec<BlockHash>) -> Option<Self> {
        None
    }
);
