//! The router does what its OpenAPI document says: schemathesis makes requests of it, good ones and bad ones, and holds every
//! answer against it.

use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, python, verify_everything};
use tempfile::TempDir;

/// Half a minute of work; the rest is for a starved machine.
const LIMIT: Duration = Duration::from_secs(400);

/// No server errors, no status, header, media type or body that the document does not have, no bad request that is taken for
/// a good one, and 405 with `allow` for methods that it does not have.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
    response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance";

#[tokio::test]
async fn the_router_does_what_its_document_says() {
    let quick = Options::mock()
        .flag("context", 128)
        .flag("mock-prefill-us-per-token", 0)
        .flag("mock-decode-us-per-token", 0);
    let cluster = Cluster::start(quick).await;
    let document = format!("{}/openapi.json", cluster.client.base());
    let (examples, deeper) = if verify_everything() {
        ("400", ",stateful")
    } else {
        ("15", "")
    };
    let phases = format!("coverage,fuzzing{deeper}");
    let dir = TempDir::new().expect("a directory for its files");
    let args = [
        "-c",
        "from schemathesis.cli import schemathesis; schemathesis()",
        "run",
        &document,
        "--checks",
        CHECKS,
        "--phases",
        &phases,
        "--max-examples",
        examples,
        // The same requests every time; what they find is told whole.
        "--seed",
        "7",
        "--continue-on-failure",
        "--no-color",
        "--request-timeout",
        "30",
    ];
    let said = python(&args, dir.path(), LIMIT).await;
    let number = |before: &str, after: &str| -> Option<u32> {
        let line = said
            .lines()
            .find(|line| line.contains(before) && line.contains(after))?;
        line.split(|letter: char| !letter.is_ascii_digit())
            .find(|word| !word.is_empty())?
            .parse()
            .ok()
    };
    // A run that tested nothing would pass as well.
    assert!(number("Tested:", "") >= Some(5), "{said}");
    assert!(number("generated,", "passed") >= Some(500), "{said}");
    oracle(&cluster).await;
}
