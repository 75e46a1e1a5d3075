use dlm as _;
use example_store as _;
