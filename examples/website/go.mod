module pando.run/examples/website

go 1.26

require pando.run/sdk v0.0.0

replace pando.run/sdk => ../../sdk/app/go
