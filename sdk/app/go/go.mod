module pando.run/sdk

go 1.26
