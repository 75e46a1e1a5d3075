//go:build !cgo

// Package dlm cannot be built without cgo.
package dlm

// The compiler's error message contains this name.
var _ = libdlm_is_a_C_library__set_CGO_ENABLED_to_1_and_install_a_C_compiler
