//! Formatters and other programs that rewrite what they read.

use super::saving::{Saving, saving, savings};

const RUST: &str = "mkdir -p src; for n in $(seq 200); do if [ $n -le $N ]; then echo \"pub const  A$n : u32=$n;\"; \
    else echo \"pub const A$n: u32 = $n;\"; fi; done > src/lib.rs; \
    printf '[package]\\nname = \"a\"\\nversion = \"0.1.0\"\\nedition = \"2024\"\\n' > Cargo.toml";

const PYTHON: &str =
    "for n in $(seq 200); do if [ $n -le $N ]; then echo \"a$n  =  $n\"; else echo \"a$n = $n\"; fi; done > a.py";

const JSON: &str = "{ echo '{'; for n in $(seq 200); do if [ $n -le $N ]; then echo \"   \\\"a$n\\\" :  $n,\"; \
    else echo \"  \\\"a$n\\\": $n,\"; fi; done; echo '  \"end\": 0'; echo '}'; } > a.json";

const fn rust(script: &'static str) -> Saving {
    saving(script).of("src/lib.rs").prepared(RUST)
}

const fn json(script: &'static str) -> Saving {
    saving(script).of("a.json").prepared(JSON)
}

savings! {
    rustfmt => rust("rustfmt --edition 2024 src/lib.rs");
    rustfmt_backup => rust("rustfmt --edition 2024 --backup src/lib.rs");
    cargo_fmt => rust("cargo fmt");
    black => saving("black -q a.py").of("a.py").prepared(PYTHON);
    jq_by_sponge => json("jq . a.json | sponge a.json");
    jq_by_mv => json("jq . a.json > a.json.tmp && mv a.json.tmp a.json");
    python_json_tool => json("python3 -m json.tool --indent 2 a.json a.json");
}
