package probe

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// check asks the health service of gRPC about the whole server, over a connection of its own.
func check(ctx context.Context, at string) error {
	c, err := grpc.NewClient("passthrough:///"+at, grpc.WithNoProxy(), grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(headerBytesMax)),
		grpc.WithMaxHeaderListSize(headerBytesMax))
	if err != nil {
		return err
	}
	defer c.Close()
	a, err := health.NewHealthClient(c).Check(ctx, &health.HealthCheckRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("the program has no grpc.health.v1.Health; register it, or probe tcp: %w", err)
	case status.Code(err) == codes.ResourceExhausted:
		return busy{err}
	case err != nil:
		return err
	case a.Status != health.HealthCheckResponse_SERVING:
		return fmt.Errorf("it answered %s", a.Status)
	}
	return nil
}
