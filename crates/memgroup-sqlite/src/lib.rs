//! SQLite under memgroup: every allocation charged to a group
