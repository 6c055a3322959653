//! The clients that others use, unchanged.

use std::path::Path;
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, python};

/// Importing LiteLLM alone takes seconds, on a starved machine many.
const LIMIT: Duration = Duration::from_secs(240);

async fn works_unchanged(script: &str) {
    let context = 512;
    let cluster = Cluster::start(Options::mock().flag("context", context)).await;
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let args = [script, cluster.client.base(), cluster.model(), &context.to_string()];
    let said = python(&args, &scripts, LIMIT).await;
    assert_eq!(said.lines().last(), Some("ok"), "{said}");
    oracle(&cluster).await;
}

#[tokio::test]
async fn the_openai_client_works_unchanged() {
    works_unchanged("openai_sdk.py").await;
}

#[tokio::test]
async fn litellm_works_unchanged() {
    works_unchanged("litellm_client.py").await;
}
