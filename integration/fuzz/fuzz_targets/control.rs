#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| innkeeper_node::fuzz::run(data));
