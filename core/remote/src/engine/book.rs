//! Which pages of the engine's pool are reserved for whom. The engine counts for itself; what is reserved here is what it may
//! come to use, so that its own queue stays empty.

use std::collections::BTreeMap;

use innkeeper_engine::EngineError;
use innkeeper_room::RoomId;

/// Reservations by room, with whatever else the engine's driver knows of each.
#[derive(Debug)]
pub(super) struct Book<T> {
    total: u32,
    rooms: BTreeMap<RoomId, Place<T>>,
}

#[derive(Debug)]
struct Place<T> {
    pages: u32,
    /// Pages that the engine may use for it by now; none before its leg is out.
    uses: u32,
    /// It is over, and the engine may not have its pages back yet.
    settling: bool,
    side: T,
}

impl<T: Default> Book<T> {
    pub(super) const fn new(total: u32) -> Self {
        Self {
            total,
            rooms: BTreeMap::new(),
        }
    }

    /// Reserves pages for a room.
    pub(super) fn open(&mut self, room: RoomId, pages: u32) -> Result<(), EngineError> {
        let free = self.free();
        if self.rooms.contains_key(&room) {
            return Err(EngineError::Exists(room));
        }
        if pages > free {
            return Err(EngineError::NoPages { wanted: pages, free });
        }
        let place = Place {
            pages,
            uses: 0,
            settling: false,
            side: T::default(),
        };
        self.rooms.insert(room, place);
        Ok(())
    }

    /// Ends a reservation; how many pages it had.
    pub(super) fn close(&mut self, room: RoomId) -> u32 {
        self.rooms.remove(&room).map_or(0, |place| place.pages)
    }

    /// The engine may use so many pages for the room from now on.
    pub(super) fn uses(&mut self, room: RoomId, pages: u32) {
        if let Some(place) = self.rooms.get_mut(&room) {
            place.uses = pages.min(place.pages);
        }
    }

    /// The room is over: from now on its pages are not among those that are in use for a reason.
    pub(super) fn settles(&mut self, room: RoomId) {
        if let Some(place) = self.rooms.get_mut(&room) {
            place.settling = true;
        }
    }

    /// What is known of a room.
    pub(super) fn side(&mut self, room: RoomId) -> Option<&mut T> {
        self.rooms.get_mut(&room).map(|place| &mut place.side)
    }

    /// Changes what is known of all rooms.
    pub(super) fn each(&mut self, change: impl FnMut(&mut T)) {
        self.rooms.values_mut().map(|place| &mut place.side).for_each(change);
    }

    /// Pages that nobody has reserved.
    pub(super) fn free(&self) -> u32 {
        let reserved = self.rooms.values().map(|place| place.pages);
        self.total.saturating_sub(reserved.fold(0, u32::saturating_add))
    }

    /// Pages of rooms that are not over: what the engine may use for a reason.
    pub(super) fn in_use(&self) -> u32 {
        let living = self.rooms.values().filter(|place| !place.settling);
        living.map(|place| place.uses).fold(0, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(number: u64) -> RoomId {
        RoomId::from_random(number)
    }

    #[test]
    fn pages_are_reserved_once_and_come_back_when_the_room_is_closed() {
        let mut book = Book::<()>::new(10);
        assert_eq!(book.open(room(1), 6), Ok(()));
        assert_eq!(book.open(room(1), 1), Err(EngineError::Exists(room(1))));
        assert_eq!(book.open(room(2), 5), Err(EngineError::NoPages { wanted: 5, free: 4 }));
        assert_eq!(book.open(room(2), 4), Ok(()));
        assert_eq!(book.in_use(), 0, "no leg is out yet");
        book.uses(room(1), 6);
        book.uses(room(2), 3);
        assert_eq!(book.in_use(), 9);
        book.settles(room(1));
        assert_eq!(
            (book.free(), book.in_use()),
            (0, 3),
            "what settles is neither free nor in use"
        );
        assert_eq!((book.close(room(1)), book.close(room(1))), (6, 0));
        book.uses(room(2), 9);
        assert_eq!((book.free(), book.in_use()), (6, 4), "never more than it has");
    }
}
