module function-go

go 1.24
