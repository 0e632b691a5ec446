module narthex/interop/suites

go 1.26.0
