use innkeeper_room::{
    Counters, Evidence, FirstToken, Incarnation, Manifest, Millis, Owes, Reason, SlabId, SlabMeta, Ticket,
};
use proptest::prelude::*;

use super::*;
use crate::coverage::Run;

fn room() -> RoomId {
    RoomId::from_random(77)
}

fn evidence() -> Evidence {
    Evidence {
        waited_for: Owes::Decode,
        waited: Millis(123),
        counters: Counters {
            tokens_computed: 1,
            bytes_sealed: 2,
            bytes_sent: 3,
            bytes_verified: 4,
            tokens_made: 5,
        },
        unacked: true,
        data_link_broken: false,
        engine_owes: Millis(9),
        was_stopped: true,
    }
}

fn bodies() -> Vec<Body> {
    let hello = HelloBody {
        token: u64::MAX,
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
    };
    let mut all = vec![
        Body::Hello(hello),
        Body::Started,
        Body::Progress(7),
        Body::LeaseAge(Some(Millis(4))),
        Body::LeaseAge(None),
        Body::Ready {
            verified: 5,
            runs: vec![Run { first: 0, count: 3 }, Run { first: 9, count: 1 }],
        },
        Body::Wait,
        Body::Verified { verified: 1, taken: 2 },
        Body::Committed,
        Body::Unknown,
        Body::Stale,
        Body::AlreadyCommitted,
        Body::AskLeaseAge,
    ];
    all.extend(
        Reason::ALL
            .iter()
            .flat_map(|reason| [Body::Fail(*reason, evidence()), Body::Ended(*reason)]),
    );
    all
}

fn manifest(slabs: u32) -> Manifest {
    Manifest {
        slabs: (0..slabs)
            .map(|id| SlabMeta {
                id: SlabId(id),
                len: 100 + id,
                checksum: id ^ 0xdead,
            })
            .collect(),
        token_count: 42,
        first_token: FirstToken {
            id: 7,
            logprob_bits: 0xbf80_0000,
            top: vec![(7, 1), (8, 2)],
        },
        ticket: None,
    }
}

#[test]
fn every_control_frame_reads_back() {
    for body in bodies() {
        let bytes = body.frame(room(), Epoch(3));
        let (header, payload, rest) = decode_frame(&bytes).unwrap();
        assert_eq!((header.room, header.epoch, rest.len()), (room(), Epoch(3), 0));
        assert_eq!(Body::decode(header.kind, payload), Ok(body));
    }
}

#[test]
fn one_flipped_bit_anywhere_is_seen() {
    for body in [Body::Fail(Reason::KvCorrupt, evidence()), Body::Wait] {
        let good = body.frame(room(), Epoch(3));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&bad).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn a_lying_length_is_refused_by_the_header_alone() {
    let header = Header {
        kind: Kind::Slab,
        room: room(),
        epoch: Epoch(1),
        slab: 0,
        offset: 0,
        length: u32::MAX,
    };
    assert_eq!(
        Header::decode(&header.encode(&[])),
        Err(FrameError::Length {
            kind: Kind::Slab,
            length: u32::MAX
        })
    );
    let hello = Header {
        kind: Kind::Hello,
        length: 25,
        ..header
    };
    assert!(matches!(
        Header::decode(&hello.encode(&[])),
        Err(FrameError::Length { .. })
    ));
}

#[test]
fn a_manifest_reads_back_from_pieces_and_is_bounded() {
    let manifest = manifest(1000);
    let bytes = encode_manifest(&manifest);
    let whole = u32::try_from(bytes.len()).unwrap();
    let mut pieces = ManifestPieces::new(1000);
    let mut got = None;
    for (at, piece) in bytes.chunks(999).enumerate() {
        let offset = u32::try_from(at * 999).unwrap();
        let length = u32::try_from(piece.len()).unwrap();
        let header = Header {
            kind: Kind::Manifest,
            room: room(),
            epoch: Epoch(1),
            slab: whole,
            offset,
            length,
        };
        got = pieces.push(&header, piece).unwrap();
    }
    assert_eq!(got, Some(manifest));
    let header = Header {
        kind: Kind::Manifest,
        room: room(),
        epoch: Epoch(1),
        slab: whole,
        offset: 0,
        length: 9,
    };
    assert_eq!(
        ManifestPieces::new(10).push(&header, &bytes[..9]),
        Err(FrameError::ManifestPieces)
    );
}

#[test]
fn a_ticket_stands_instead_of_slabs_and_is_bounded() {
    let with = |slabs, ticket: &[u8]| Manifest {
        ticket: Ticket::new(ticket.to_vec()).ok(),
        ..manifest(slabs)
    };
    let short = with(0, b"v{}");
    assert_eq!(decode_manifest(&encode_manifest(&short)), Ok(short.clone()));
    let both = encode_manifest(&with(1, b"v{}"));
    assert_eq!(decode_manifest(&both), Err(FrameError::Payload(Kind::Manifest)));
    assert!(Ticket::new(vec![]).is_err() && Ticket::new(vec![1; Ticket::LONGEST + 1]).is_err());
    let longest = with(0, &vec![7; Ticket::LONGEST]);
    let bytes = encode_manifest(&longest);
    let header = |length: usize| Header {
        kind: Kind::Manifest,
        room: room(),
        epoch: Epoch(1),
        slab: u32::try_from(bytes.len()).unwrap(),
        offset: 0,
        length: u32::try_from(length).unwrap(),
    };
    let whole = header(bytes.len());
    assert_eq!(ManifestPieces::new(0).push(&whole, &bytes), Ok(Some(longest)));
    // A room that has slabs holds no more than their manifest.
    let piece = header(9);
    assert_eq!(
        ManifestPieces::new(3).push(&piece, &bytes[..9]),
        Err(FrameError::ManifestPieces)
    );
}

#[test]
fn a_lying_count_allocates_nothing() {
    let mut bytes = encode_manifest(&manifest(1));
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode_manifest(&bytes), Err(FrameError::Payload(Kind::Manifest)));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..600)) {
        crate::fuzz::frame::run(&data);
        crate::fuzz::session::run(&data);
    }

    #[test]
    fn any_manifest_reads_back(
        slabs in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 0..50),
        numbers in any::<(u32, u32, u32)>(),
        top in prop::collection::vec(any::<(u32, u32)>(), 0..25),
    ) {
        let slabs = slabs.into_iter().map(|(id, len, checksum)| SlabMeta { id: SlabId(id), len, checksum }).collect();
        let first_token = FirstToken { id: numbers.1, logprob_bits: numbers.2, top };
        let manifest = Manifest { slabs, token_count: numbers.0, first_token, ticket: None };
        prop_assert_eq!(decode_manifest(&encode_manifest(&manifest)), Ok(manifest));
    }
}
