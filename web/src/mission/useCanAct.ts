import { useQuery } from "@tanstack/react-query";
import { sessionQuery } from "../api/queries";

/** Whether who is logged in may change anything; the server decides, this only spares a refusal. */
export function useCanAct(): boolean {
  const session = useQuery(sessionQuery).data;
  return session !== undefined && session.role !== "viewer";
}
