//! `GET /innkeeper/v1/explain/{room}`: what this router and the room's workers recorded of it, and what follows from that.
//!
//! All nodes that may know something are asked at once, each with a short deadline; one that does not answer is named.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::future::join_all;
use innkeeper_actors::router::RouterNode;
use innkeeper_leases::Member;
use innkeeper_node::http::{refusal, room_of};
use innkeeper_node::metrics::LEDGER_DEADLINE;
use innkeeper_node::recorder::explain::{Case, Missing, explain};
use innkeeper_node::recorder::{Record, Recorder, unix_ms};
use innkeeper_room::ledger::RoomRow;
use innkeeper_room::{Incarnation, Role, RoomId};
use tokio::sync::Semaphore;

/// So many rooms are explained at once: each question goes to the room's workers, and of a room that nobody knows to all.
const AT_ONCE: usize = 8;
/// A node's time to answer.
const NODE_DEADLINE: Duration = Duration::from_millis(800);

/// Who is asked for explanations.
#[derive(Clone)]
pub(crate) struct Explains {
    node: Arc<RouterNode>,
    recorder: Recorder,
    client: reqwest::Client,
    places: Arc<Semaphore>,
}

/// What a node said.
enum Said {
    Record(Box<Record>),
    Nothing,
    NoAnswer(String),
}

impl Explains {
    /// Of this router.
    ///
    /// # Errors
    /// No HTTP client can be made.
    pub(crate) fn new(node: Arc<RouterNode>, recorder: Recorder) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(NODE_DEADLINE)
            .pool_max_idle_per_host(0);
        Ok(Self {
            node,
            recorder,
            client: client.build()?,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    /// The route.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/innkeeper/v1/explain/{room}", get(answer))
            .with_state(self)
    }

    async fn gather(&self, room: RoomId) -> (Vec<Record>, Vec<Missing>, Option<RoomRow>) {
        let (rows, members) = tokio::join!(self.node.rows(LEDGER_DEADLINE), self.node.members(LEDGER_DEADLINE));
        let row = rows.unwrap_or_default().into_iter().find(|row| row.room == room);
        // Without the ledger's answer those that were seen lately are asked.
        let members: Vec<Member> = match members {
            Some(members) => members.into_iter().filter_map(|(_, member)| member).collect(),
            None => self.recorder.members(),
        };
        let own = self.recorder.record(room);
        let asked: Vec<&Member> = members
            .iter()
            .filter(|member| own.as_ref().is_none_or(|own| takes_part(own, member)))
            .collect();
        let answers = join_all(asked.iter().map(|member| self.ask(member, room))).await;
        let mut records: Vec<Record> = own.into_iter().collect();
        let mut missing = vec![];
        for (member, said) in asked.into_iter().zip(answers) {
            match said {
                Said::Record(record) => records.push(*record),
                Said::Nothing => {}
                Said::NoAnswer(why) => missing.push(Missing {
                    role: member.role,
                    name: Some(member.name.clone()),
                    incarnation: member.incarnation,
                    why,
                }),
            }
        }
        add_absent(&records, &mut missing);
        (records, missing, row)
    }

    async fn ask(&self, member: &Member, room: RoomId) -> Said {
        let url = format!("http://{}/innkeeper/v1/record/{room}", member.http);
        let answer = match self.client.get(url).send().await {
            Ok(answer) => answer,
            Err(error) if error.is_timeout() => {
                return Said::NoAnswer(format!("no answer within {} ms", NODE_DEADLINE.as_millis()));
            }
            Err(error) => return Said::NoAnswer(format!("no answer: {}", cause(&error))),
        };
        if answer.status().as_u16() == StatusCode::NOT_FOUND.as_u16() {
            return Said::Nothing;
        }
        match answer.json().await {
            Ok(record) => Said::Record(Box::new(record)),
            Err(error) => Said::NoAnswer(format!("its answer is no record: {}", cause(&error))),
        }
    }
}

/// Whether a node may know something of a room: it has a part in it, or is the successor of one that had.
fn takes_part(own: &Record, member: &Member) -> bool {
    let (node, name) = match member.role {
        Role::Router => return false,
        Role::Prefill => (own.prefill, &own.prefill_name),
        Role::Decode => (own.decode, &own.decode_name),
    };
    member.incarnation == node || name.as_ref() == Some(&member.name)
}

/// A worker of the room of which there is no record and nobody to ask is named as well. Who did not answer is named only if
/// it had a part, or may have had the missing one.
fn add_absent(records: &[Record], missing: &mut Vec<Missing>) {
    let Some(any) = records.first() else { return };
    let workers: [(Role, Incarnation, &Option<String>); 2] = [
        (Role::Prefill, any.prefill, &any.prefill_name),
        (Role::Decode, any.decode, &any.decode_name),
    ];
    missing.retain(|missing| records.iter().all(|record| record.role != missing.role));
    for (role, incarnation, name) in workers {
        let known = records.iter().any(|record| record.role == role) || missing.iter().any(|other| other.role == role);
        if !known {
            missing.push(Missing {
                role,
                name: name.clone(),
                incarnation,
                why: "it has no record of the room, or is not there any more".to_owned(),
            });
        }
    }
    if records.iter().all(|record| record.role != Role::Router) {
        missing.push(Missing {
            role: Role::Router,
            name: None,
            incarnation: any.router,
            why: "this router has no record of the room: it was another one's, or another life's".to_owned(),
        });
    }
}

async fn answer(State(explains): State<Explains>, Path(room): Path<String>) -> Response {
    let room = match room_of(&room) {
        Ok(room) => room,
        Err(refused) => return refused,
    };
    let Ok(_place) = explains.places.try_acquire() else {
        let message = format!("{AT_ONCE} rooms are being explained already; ask again in a second");
        let mut busy = refusal(StatusCode::SERVICE_UNAVAILABLE, "overloaded", &message);
        busy.headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return busy;
    };
    let (records, missing, row) = explains.gather(room).await;
    let case = Case {
        room,
        records: &records,
        missing: &missing,
        row: row.as_ref(),
        now_ms: unix_ms(),
    };
    match explain(case) {
        Some(explanation) => Json(explanation).into_response(),
        None => {
            let message = format!(
                "no node has a record of a room {room}: it never existed, it ended too long ago, or it ended well and its \
                 nodes were started again since"
            );
            refusal(StatusCode::NOT_FOUND, "unknown_room", &message)
        }
    }
}

/// The innermost cause: what is around it names only the address.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
