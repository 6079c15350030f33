#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::job_files(input));
