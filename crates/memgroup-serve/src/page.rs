//! Page: the files of the page, which are a part of the program.
//!
//! - I1. The page loads nothing from elsewhere and runs no code but its own file: the header `Content-Security-Policy` of each answer says so.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct PageFile {
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}

macro_rules! files {
    ($($kind:literal $name:literal),*) => {
        [$(PageFile { kind: concat!("text/", $kind, "; charset=utf-8"), text: include_str!(concat!("../page/", $name)) }),*]
    };
}

/// The files, at the positions that the routes name.
pub(crate) const FILES: [PageFile; 8] = files![
    "html" "index.html",
    "css" "style.css",
    "javascript" "app.js",
    "javascript" "text.js",
    "javascript" "icicle.js",
    "javascript" "table.js",
    "javascript" "group.js",
    "javascript" "log.js"
];

/// The policy of all answers.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
