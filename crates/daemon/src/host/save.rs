//! Writes the state of a running interface into its file (`weft save`, `SaveConfig`).
