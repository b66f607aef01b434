//! Systems without the service control manager of Windows.

use weft_commands::output;
use weft_config::exit::Code;

use crate::logging;

/// Reports that only Windows has such services.
pub fn host(_: &str, _: impl FnOnce(Option<logging::File>) -> Code) -> Code {
    output::error(&"--service is for the service control manager of Windows: use `weft up`");
    Code::Usage
}
