#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| innkeeper_transfer::fuzz::session::run(data));
