//! A pair of stand-in engines in one process, for scripts and for looking: `standin vllm|sglang`. Prints where both listen,
//! one line of JSON, and serves until its standard input ends.

use innkeeper_remote::standin::{Config, Fabric, Kind, Standin};
use tokio::io::AsyncReadExt;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let kinds = match std::env::args().nth(1).as_deref() {
        Some("sglang") => [Kind::SglangPrefill, Kind::SglangDecode],
        Some("vllm") | None => [Kind::Vllm, Kind::Vllm],
        Some(other) => {
            let why = format!("`{other}` is no engine: write vllm or sglang");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        }
    };
    let fabric = Fabric::default();
    let prefill = Standin::start(Config::new(kinds[0]), fabric.clone()).await?;
    let decode = Standin::start(Config::new(kinds[1]), fabric).await?;
    println!(r#"{{"prefill":"{}","decode":"{}"}}"#, prefill.url(), decode.url());
    let mut ignored = vec![];
    tokio::io::stdin().read_to_end(&mut ignored).await?;
    Ok(())
}
