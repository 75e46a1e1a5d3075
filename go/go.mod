module libdlm.org/dlm

go 1.24
