//! `cargo bench -p innkeeper-transfer`: the data plane against plain TCP in the same run.

fn main() -> std::io::Result<()> {
    let report = innkeeper_transfer::bench::compare(1 << 30)?;
    println!("{report}");
    Ok(())
}
