//! One request for one token through the router; if it fails, what became of its room.

use std::time::{Duration, Instant};

use innkeeper_room::RoomId;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::RouterArgs;
use super::super::explain::{ended, look_up};
use super::super::http::{NODE_DEADLINE, base, client, get};
use super::super::rooms::cell;
use super::report::Report;
use crate::client::top::time;

/// The router ends every request by itself; a router that does not answer at all is not waited for longer.
const LIMIT: Duration = Duration::from_secs(60);
/// The rooms among which the probe's own is looked for.
const ENDED_ROWS: u32 = 200;

pub(super) async fn probe(router: &RouterArgs, report: &mut Report) -> anyhow::Result<()> {
    let rid = format!("doctor-{:016x}", innkeeper_node::random::incarnation()?.get());
    let began = Instant::now();
    let asked = ask(router, &rid).await;
    let took = time(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
    match asked {
        Ok((status, _)) if status.is_success() => {
            report.ok("probe", base(&router.router), format!("one token came in {took}"))
        }
        Ok((status, answer)) => {
            let error = &answer["error"];
            let found = format!(
                "{status} {} after {took}: {}",
                cell(&error["code"]),
                cell(&error["message"])
            );
            let advice = match became(router, &rid).await {
                Some((room, headline)) => format!("{headline} `innkeeper rooms explain {room}` has the evidence"),
                None => "README.md says under Error codes what to do for this one".to_owned(),
            };
            report.fail("probe", base(&router.router), found, advice);
        }
        Err(error) => report.fail(
            "probe",
            base(&router.router),
            format!("no answer after {took}: {error:#}"),
            "see the router's line above",
        ),
    }
    Ok(())
}

/// Asks for one token of the model that the router serves.
async fn ask(router: &RouterArgs, rid: &str) -> anyhow::Result<(StatusCode, Value)> {
    let models: Value = get(&client(router, Some(NODE_DEADLINE))?, &router.router, "/v1/models").await?;
    let model = &models["data"][0]["id"];
    let body = json!({ "model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0 });
    let request = client(router, Some(LIMIT))?.request(Method::POST, &router.router, "/v1/completions")?;
    let answer = request.header("x-request-id", rid).json(&body).send().await?;
    let status = answer.status();
    Ok((status, answer.json().await.unwrap_or_default()))
}

/// The last room of a request, and what became of it in one sentence.
async fn became(router: &RouterArgs, rid: &str) -> Option<(RoomId, String)> {
    let rows = ended(router, ENDED_ROWS).await.ok()?;
    let row = rows.iter().find(|row| row["rid"] == rid)?;
    let room = row["room"].as_str()?.parse().ok()?;
    let explanation = look_up(router, room).await.ok();
    let headline = explanation.map_or_else(|| cell(&row["headline"]), |(explanation, _)| explanation.headline);
    Some((room, headline))
}
