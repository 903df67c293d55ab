import { useQuery } from "@tanstack/react-query";
import { sessionQuery } from "../api/queries";

/** Whether the logged-in user may change anything. The server decides; this only avoids a refusal. */
export function useCanAct(): boolean {
  const session = useQuery(sessionQuery).data;
  return session !== undefined && session.role !== "viewer";
}
