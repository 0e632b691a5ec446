module narthex/interop/certificates

go 1.26.0
