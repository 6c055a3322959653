//! What the router shows of itself, asked or not.

use std::collections::BTreeMap;

use innkeeper_room::Incarnation;
use innkeeper_room::ledger::router::MemberView;

use super::{Show, State};

impl State {
    pub(super) fn period(&mut self) {
        self.reaper.tick(self.parts.shared.clock.now());
        self.parts.zombies.send_replace(self.reaper.zombies());
        let members = self.parts.ledger.members();
        let usable = |role| {
            members
                .iter()
                .filter(|member| member.info.role == role && is_usable(member))
                .count()
        };
        let usable = (
            usable(innkeeper_room::Role::Prefill),
            usable(innkeeper_room::Role::Decode),
        );
        self.parts
            .usable
            .send_if_modified(|old| std::mem::replace(old, usable) != usable);
    }

    pub(super) fn settle(&mut self) {
        let drained = self.parts.ledger.drained();
        self.parts
            .drained
            .send_if_modified(|old| std::mem::replace(old, drained) != drained);
        self.alarm.set(self.parts.ledger.next_deadline());
    }

    pub(super) fn show(&self, show: Show) {
        let now = self.parts.shared.clock.now();
        // A questioner that gave up is no failure of ours.
        match show {
            Show::Rows(answer) => drop(answer.send(self.parts.ledger.rows(now))),
            Show::Gauges(answer) => drop(answer.send((self.parts.ledger.gauges(now), self.reaper.zombies()))),
            Show::Routers(answer) => drop(answer.send(self.nodes.routers().cloned().collect())),
            Show::Members(answer) => drop(answer.send(self.members())),
        }
    }

    fn members(&self) -> Vec<(MemberView, Option<innkeeper_leases::Member>)> {
        let known: BTreeMap<Incarnation, _> = self
            .nodes
            .members()
            .map(|member| (member.incarnation, member))
            .collect();
        let views = self.parts.ledger.members().into_iter();
        views
            .map(|view| {
                let member = known.get(&view.info.incarnation).map(|member| (*member).clone());
                (view, member)
            })
            .collect()
    }
}

/// Whether new rooms may go to a worker.
fn is_usable(member: &MemberView) -> bool {
    member.info.serving && member.link_up && !member.lost && member.load.is_none_or(|load| load.serving)
}
